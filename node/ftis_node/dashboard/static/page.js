// The page: draws what /api/v1/layout describes, fills it, and keeps it current.

import { Charts, tellBottleneck } from "./charts.js";
import { ago, byId, bytes, el, fill, number, setText, tile } from "./dom.js";
import { EventLog, NodeList, Rollouts } from "./lists.js";
import { Line, ask } from "./live.js";
import { Operator } from "./operator.js";

const NODES_EVERY_MS = 5000;
const MARKS = { pass: "✓", warn: "!", unknown: "?", fail: "✕" };

class Page {
  constructor(layout) {
    this.words = layout.words;
    this.charts = new Charts(layout);
    this.nodes = new NodeList(layout.words);
    this.rollouts = new Rollouts(layout.verdicts);
    this.events = new EventLog();
    this.operator = new Operator(this.nodes);
    this.line = new Line({
      state: (state) => this.show(state),
      points: ({ points }) => this.charts.add(points),
      log: ({ events }) => this.events.add(events),
      rollouts: () => this.rollouts.fetch(),
      reset: () => this.fetch(),
      returned: () => this.fetch(),
      poll: () => this.fetch(),
    }, (text) => this.banner(text));
    setInterval(() => !document.hidden && this.nodes.fetch(), NODES_EVERY_MS);
  }

  fetch() {
    return Promise.all([this.charts.fetch(), this.nodes.fetch(), this.rollouts.fetch(), this.events.fetch()]);
  }

  banner(text) {
    byId("banner").hidden = !text;
    setText(byId("banner"), text);
  }

  show(state) {
    setText(byId("swarm-name"), state.swarm.name || state.swarm.id || "no swarm");
    setText(byId("role"), state.role === "node" ? `seen by ${state.node.name}` : `seen by ${state.role === "seed" ? "a seed" : "an observer"}`);
    document.title = `${state.swarm.name || "ftis-node"} – ${state.node.name || state.role}`;
    this.strip(state);
    byId("node").hidden = byId("rollouts").hidden = state.role !== "node";
    if (state.role === "node") this.node(state);
    tellBottleneck(state.bottleneck);
    this.operator.show(state);
  }

  strip({ swarm, age_seconds }) {
    const count = (...states) => states.reduce((sum, state) => sum + (swarm.nodes[state] || 0), 0);
    const put = (key, label, text, more) => tile(byId("strip"), key, label, this.words[label], text, more);
    const mark = { alive: "✓ ", alone: "! ", unknown: "? " }[swarm.state];
    put("swarm", "Swarm", mark + swarm.state, `${swarm.seeds} seed${swarm.seeds === 1 ? "" : "s"}`);
    const resting = count("paused", "degraded", "draining");
    put("working", "Nodes working", number(count("working", "alone")), resting ? `${resting} paused, ailing or leaving` : "");
    put("joining", "Nodes joining", number(count("joining", "starting")));
    put("silent", "Nodes silent", number(count("silent")));
    put("steps", "Policy steps", number(swarm.policy_steps), `${number(swarm.published_groups)} groups published`);
    put("speed", "Tokens a second", number(swarm.tokens_per_second));
    put("age", "Data", `${ago(age_seconds)} old`);
  }

  node({ node, gates, counts, traffic, now }) {
    const put = (key, label, text, more) => tile(byId("node-facts"), key, label, this.words[label], text, more);
    put("state", "State", node.state, node.why || (node.alone_since ? `alone for ${ago(now - node.alone_since)}` : node.doing));
    put("step", "Step", number(node.step), `policy version ${number(node.policy_version)}`);
    put("used", "Used", number(counts.own_used + counts.foreign_used), `${number(counts.own_used)} own, ${number(counts.foreign_used)} foreign`);
    put("admitted", "Admitted", number(counts.admitted), "groups of others");
    put("published", "Published", number(counts.published), "own groups");
    put("in", "In", bytes(traffic.bytes_in), `${number(traffic.bytes_per_token_in)} bytes a token`);
    put("out", "Out", bytes(traffic.bytes_out), `${number(traffic.bytes_per_token_out)} bytes a token`);
    put("model", "Model", node.model || "none", `${number(node.parameters)} parameters, ${node.trainable || "none"} trained, ${node.generator || "no"} generator`);
    this.gates(gates);
    this.reasons("refused", counts.refused);
    this.reasons("unused", counts.unused);
  }

  gates(gates) {
    const told = JSON.stringify(gates);
    if (told === this.toldGates) return;
    this.toldGates = told;
    fill(byId("gates"), ...gates.map((gate) => el("li", { class: gate.verdict, "data-gate": gate.name },
      el("span", { class: "mark", "aria-label": gate.verdict, role: "img" }, MARKS[gate.verdict] || "?"),
      `${gate.name}: ${gate.why}${gate.fix ? ` → ${gate.fix}` : ""}`)));
  }

  reasons(id, rows) {
    const told = JSON.stringify(rows);
    if (this[id] === told) return;
    this[id] = told;
    const lines = rows.map((row) => el("tr", { "data-reason": row.reason }, el("td", {}, row.reason),
      el("td", { class: "number" }, number(row.count)), el("td", {}, row.meaning)));
    fill(byId(id), el("tbody", {}, ...(lines.length ? lines : [el("tr", {}, el("td", {}, "none"))])));
  }
}

let page;

async function begin() {
  try {
    const layout = await ask("layout");
    page = new Page(layout);
  } catch (error) {
    byId("banner").hidden = false;
    setText(byId("banner"), `The node does not answer (${error.message}); trying again.`);
    setTimeout(begin, 2000);
    return;
  }
  page.line.open();
  await Promise.all([page.line.again(), page.fetch()]);
  document.documentElement.dataset.ready = "yes";
}

begin();
