// What the operator may ask of the node, with the token that lies in its directory. The token stays in this tab.

import { byId, el, fill, setText } from "./dom.js";
import { ask } from "./live.js";

const KEY = "ftis-page-token";

export class Operator {
  constructor(nodes) {
    this.nodes = nodes;
    this.shown = false;
  }

  show(state) {
    const box = byId("operator");
    box.hidden = !state.writable;
    if (!state.writable || this.shown) return;
    this.shown = true;
    this.said = el("span", { role: "status" });
    const token = el("input", { type: "password", id: "token", autocomplete: "off", value: sessionStorage.getItem(KEY) || "",
      onchange: (event) => { sessionStorage.setItem(KEY, event.target.value.trim()); this.offer(); } });
    fill(box, el("h3", {}, "Operator"),
      el("label", {}, "token (file page.token in the node's directory) ", token),
      el("button", { type: "button", onclick: () => this.act("pause") }, "Pause"), " ",
      el("button", { type: "button", onclick: () => this.act("resume") }, "Resume"), " ", this.said);
    this.offer();
  }

  offer() {
    const has = Boolean(sessionStorage.getItem(KEY));
    const button = (kind, node) => el("button", { type: "button", "aria-label": `${kind} ${node.name}`,
      onclick: () => this.act(kind, node.node_id) }, kind);
    const choices = (node) => (node.opinion ? ["forget"] : ["trust", "block"]).map((kind) => button(kind, node));
    this.nodes.trust = has ? (node) => el("span", {}, ...choices(node)) : null;
    this.nodes.fetch();
  }

  async act(kind, node_id = "") {
    try {
      const done = await ask("actions", { method: "POST", body: JSON.stringify({ kind, node_id }), headers: {
        "content-type": "application/json", authorization: `Bearer ${sessionStorage.getItem(KEY) || ""}` } });
      setText(this.said, `${kind}: asked (number ${done.id}); the node takes it up in a moment`);
    } catch (error) {
      setText(this.said, `${kind}: ${error.message}`);
    }
  }
}
