// Nodes, texts and events.

import { ago, byId, clock, el, fill, number, setText } from "./dom.js";
import { ask } from "./live.js";

const VERDICT_MARKS = { used: ["✓", "good"], unused: ["–", "odd"], refused: ["✕", "bad"] };
const LEVEL_MARKS = { error: ["✕", "bad"], warning: ["!", "odd"], info: ["·", "quiet"], debug: ["·", "quiet"] };
const EVENTS_KEPT = 200;

export class NodeList {
  constructor(words) {
    this.words = words;
    this.trust = null;
  }

  async fetch() {
    const found = await ask("nodes?limit=500").catch(() => null);
    if (!found) return;
    this.table(found);
    this.counted(found);
  }

  table(found) {
    const heads = ["Name", "State", "Model", "Steps", "pass@1", "Tokens a second", "Published", "Used",
      "Taken by us", "Broke a promise", "Opinion", "Version", "Seen", "Node id"];
    const numeric = new Set(["Steps", "pass@1", "Tokens a second", "Published", "Used", "Taken by us", "Broke a promise"]);
    const now = Date.now() / 1000;
    const rows = found.nodes.map((node) => {
      const cells = [`${node.name}${node.me ? " (this node)" : ""}`, node.state,
        node.role === "node" ? `${node.model}${node.trainable === "lora" ? " + adapter" : ""}` : node.role,
        number(node.policy_version), number(node.pass_at_1), number(node.tokens_per_second), number(node.groups_published),
        number(node.groups_used), node.me ? "–" : number(node.here.accepted), node.me ? "–" : number(node.here.refused),
        node.opinion || "–", node.software, `${ago(now - node.seen_at)} ago`, node.node_id];
      return el("tr", { "data-node": node.node_id },
        ...cells.map((cell, i) => el("td", { class: numeric.has(heads[i]) ? "number" : "" }, cell)),
        this.trust && !node.me ? el("td", {}, this.trust(node)) : null);
    });
    const head = el("tr", {}, ...heads.map((name) =>
      el("th", { scope: "col", class: numeric.has(name) ? "number" : "", title: this.words[name] }, name)),
      this.trust ? el("th", { scope: "col" }, "Actions") : null);
    fill(byId("nodes-table"), el("thead", {}, head), el("tbody", {}, ...rows));
    const shown = found.nodes.length < found.total ? `, the first ${found.nodes.length} shown` : "";
    setText(byId("nodes-note"), `${found.total} known${shown}. Name, state, model and scores are each node's own claim.`);
  }

  counted(found) {
    const told = found.nodes.filter((node) => !node.me && node.role === "node");
    const heads = ["Name", "Taken by them", "Broke a promise", "Never looked at", "Taken by us", "Their broken promises"];
    const rows = told.map((node) => {
      const theirs = node.of_us;
      const left = theirs ? Math.max(0, found.published_here - theirs.accepted - theirs.refused) : found.published_here;
      const cells = [node.name, theirs ? number(theirs.accepted) : "not told", theirs ? number(theirs.refused) : "not told",
        number(left), number(node.here.accepted), number(node.here.refused)];
      return el("tr", { "data-node": node.node_id },
        ...cells.map((cell, i) => el("td", { class: i ? (i === 2 && theirs?.refused ? "number bad" : "number") : "" }, cell)));
    });
    const head = el("tr", {}, ...heads.map((name, i) =>
      el("th", { scope: "col", class: i ? "number" : "", title: this.words[name] }, name)));
    const own = el("caption", {}, `This node counts ${number(found.published_here)} groups published.`);
    fill(byId("counted-table"), own, el("thead", {}, head), el("tbody", {}, ...rows));
    byId("counted").hidden = !found.nodes.some((node) => node.me && node.role === "node");
  }
}

export class Rollouts {
  constructor(verdicts) {
    this.verdicts = verdicts;
    this.choice = {};
    const select = (name, values) => el("label", {}, `${name} `,
      el("select", { name, onchange: (event) => { this.choice[name] = event.target.value; this.fetch(); } },
        el("option", { value: "" }, "all"), ...values.map((value) => el("option", { value }, value))));
    const step = el("input", { type: "number", min: 0, name: "step", class: "step",
      onchange: (event) => { this.choice.step = event.target.value; this.fetch(); } });
    fill(byId("rollout-filters"), select("origin", ["own", "foreign"]), select("verdict", ["used", "unused"]),
      el("label", {}, "step ", step));
    byId("rollout-filters").addEventListener("submit", (event) => event.preventDefault());
    byId("rollout-more").addEventListener("click", () => this.older());
  }

  query(extra = {}) {
    const given = Object.entries({ limit: 10, ...this.choice, ...extra }).filter(([, value]) => value !== "");
    return `rollouts?${new URLSearchParams(given)}`;
  }

  async fetch() {
    const found = await ask(this.query()).catch(() => null);
    if (!found) return;
    // What somebody reads stays where it is.
    const open = new Set([...byId("rollout-list").querySelectorAll("details[open]")].map((d) => d.dataset.rollout));
    if (open.size) {
      const first = Number(byId("rollout-list").firstElementChild?.dataset.rollout || 0);
      const fresh = found.rollouts.filter((group) => group.id > first).map((group) => this.group(group));
      if (fresh.length < found.rollouts.length) return byId("rollout-list").prepend(...fresh);
    }
    fill(byId("rollout-list"), ...(found.rollouts.length ? found.rollouts.map((group) => this.group(group)) : ["No group yet."]));
    this.more(found.before);
  }

  async older() {
    const found = await ask(this.query({ before: this.before })).catch(() => null);
    if (!found) return;
    byId("rollout-list").append(...found.rollouts.map((group) => this.group(group)));
    this.more(found.before);
  }

  more(before) {
    this.before = before;
    byId("rollout-more").hidden = before === null;
  }

  group(group) {
    const [mark, tone] = VERDICT_MARKS[group.verdict] || ["?", "odd"];
    const right = group.completions.filter((c) => c.reward >= 0.99).length;
    const reason = group.reason ? `, ${group.reason}: ${group.reason_meaning}` : "";
    const who = group.origin === "own" ? "own" : `from ${group.author_name || group.author}`;
    const line = `step ${group.step} · ${who} · ${group.task} · ${right} of ${group.completions.length} right · ${group.verdict}${reason}`;
    return el("details", { class: "group", "data-rollout": group.id },
      el("summary", {}, el("span", { class: `mark ${tone}` }, mark), line),
      el("pre", { class: "prompt" }, group.prompt), ...group.completions.map((c) => this.completion(c)));
  }

  completion(c) {
    const text = el("pre", {}, c.text || "(empty)");
    if (c.weight !== null) text.style.setProperty("--weight", String(Math.min(1, c.weight / 2) * 0.55));
    const facts = [`reward ${number(c.reward)}`, `advantage ${number(c.advantage)}`, `weight ${number(c.weight)}`,
      `surprise ${number(c.surprise)} nats`, `${number(c.tokens)} tokens`, `ended by ${c.finish}`];
    const good = c.reward >= 0.99;
    return el("div", { class: "completion" }, text,
      el("p", {}, el("span", { class: good ? "good" : "bad" }, good ? "✓ right" : "✕ wrong"), ` · ${facts.join(" · ")} · `,
        el("strong", { title: this.verdicts[c.verdict] }, c.verdict), ` — ${this.verdicts[c.verdict] || ""}`));
  }
}

export class EventLog {
  constructor() {
    byId("event-more").addEventListener("click", () => this.older());
  }

  async fetch() {
    const found = await ask("events?limit=30").catch(() => null);
    if (!found) return;
    fill(byId("event-list"), ...found.events.map((event) => this.line(event)));
    this.newest = found.events.length ? found.events[0].id : 0;
    this.more(found.before);
  }

  add(events) {
    for (const event of events.filter((e) => e.id > (this.newest || 0))) {
      byId("event-list").prepend(this.line(event));
      this.newest = event.id;
    }
    while (byId("event-list").children.length > EVENTS_KEPT) byId("event-list").lastElementChild.remove();
  }

  async older() {
    const found = await ask(`events?limit=50&before=${this.before}`).catch(() => null);
    if (!found) return;
    byId("event-list").append(...found.events.map((event) => this.line(event)));
    this.more(found.before);
  }

  more(before) {
    this.before = before;
    byId("event-more").hidden = before === null;
  }

  line(event) {
    const [mark, tone] = LEVEL_MARKS[event.level] || LEVEL_MARKS.info;
    return el("li", { "data-event": event.id }, el("time", { datetime: new Date(event.ts * 1000).toISOString() }, clock(event.ts)),
      el("span", { class: `mark ${tone}`, title: event.level }, mark), `${event.kind}: ${event.text}`);
  }
}
