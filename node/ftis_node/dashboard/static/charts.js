// Curves: fetched thinned out, then lengthened by live points until it is time to fetch them thinned out again.

import { byId, el, number, setText } from "./dom.js";
import { ask } from "./live.js";

const POINTS = 300;
const MOST_POINTS = 2 * POINTS;
const TOKENS_REFRESH_MS = 5000;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Chart {
  constructor(spec, meanings) {
    this.spec = spec;
    this.data = new Map();
    this.names = [...new Set(spec.lines.flatMap((line) => [line.series, ...(line.band || [])]))];
    const told = spec.lines.map((line) => meanings[line.series.split("{")[0]]).join(" ");
    this.values = el("small");
    this.plot = el("div", { class: "plot", "aria-hidden": "true" });
    this.figure = el("figure", { "data-chart": spec.title, title: told },
      el("figcaption", {}, `${spec.title} (${spec.unit})`, this.values), this.plot);
  }

  set(found, upto) {
    for (const curve of found) this.data.set(curve.name, { x: curve.x, y: curve.y });
    this.upto = upto;
  }

  // True when it got longer than a screen can show.
  add(name, x, value) {
    const curve = this.data.get(name);
    if (!curve) return false;
    curve.x.push(x);
    curve.y.push(value);
    this.stale = true;
    return curve.x.length > MOST_POINTS;
  }

  draw(axis) {
    this.stale = false;
    const tables = this.names.map((name) => sorted(this.data.get(name) || { x: [], y: [] }));
    this.tell(tables);
    const data = uPlot.join(tables.map((table) => [table.x, table.y]));
    const width = Math.max(200, this.plot.clientWidth);
    if (this.chart && this.axis === axis) {
      this.chart.setData(data);
      return;
    }
    this.chart?.destroy();
    this.axis = axis;
    this.chart = new uPlot(this.options(width, axis), data, this.plot);
  }

  tell(tables) {
    const parts = this.spec.lines.map((line) => {
      const y = tables[this.names.indexOf(line.series)].y;
      return `${line.label}: ${y.length ? number(y[y.length - 1]) : "no data"}`;
    });
    setText(this.values, parts.join(" · "));
  }

  options(width, axis) {
    const ink = style("--quiet"), line = style("--line");
    const colour = (name) => {
      const place = this.spec.lines.findIndex((l) => l.series === name || (l.band || []).includes(name));
      return style(`--curve-${(place % 4) + 1}`);
    };
    const drawn = this.names.map((name) => {
      const shown = this.spec.lines.some((l) => l.series === name);
      const place = this.spec.lines.findIndex((l) => l.series === name);
      return { label: name, stroke: colour(name), width: shown ? 2 : 0, spanGaps: true,
        dash: place === 1 ? [6, 3] : place === 2 ? [2, 3] : undefined, points: { show: shown ? undefined : false, size: 4 } };
    });
    const bands = this.spec.lines.filter((l) => l.band).map((l) => ({
      series: [this.names.indexOf(l.band[1]) + 1, this.names.indexOf(l.band[0]) + 1], fill: `${colour(l.series)}33` }));
    const format = axis === "time" ? undefined : (_, ticks) => ticks.map((tick) => number(tick));
    return { width, height: 180, legend: { show: false }, cursor: { show: false }, bands,
      scales: { x: { time: axis === "time" } },
      axes: [{ stroke: ink, grid: { stroke: line, width: 1 }, values: format },
        { stroke: ink, grid: { stroke: line, width: 1 }, size: 56, values: (_, ticks) => ticks.map((t) => number(t)) }],
      series: [{}, ...drawn] };
  }

  resize() {
    this.chart?.setSize({ width: Math.max(200, this.plot.clientWidth), height: 180 });
  }

  restyle() {
    this.chart?.destroy();
    this.chart = undefined;
  }
}

// By x, and of several values at one place the last; a resumed node goes over some steps again.
function sorted({ x, y }) {
  const order = x.map((_, i) => i).sort((a, b) => x[a] - x[b] || a - b);
  const found = { x: [], y: [] };
  for (const i of order) {
    if (found.x.length && found.x[found.x.length - 1] === x[i]) found.y[found.y.length - 1] = y[i];
    else {
      found.x.push(x[i]);
      found.y.push(y[i]);
    }
  }
  return found;
}

export class Charts {
  constructor(layout) {
    this.axis = layout.role === "node" ? "step" : "time"; // only a node takes steps and samples tokens
    this.charts = [];
    for (const section of layout.sections) this.lay(section, layout.meanings);
    this.chooser();
    new ResizeObserver(() => this.charts.forEach((chart) => chart.resize())).observe(byId("charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.charts.forEach((chart) => chart.restyle());
      this.draw();
    });
    setInterval(() => this.axis === "tokens" && !document.hidden && this.fetch(), TOKENS_REFRESH_MS);
  }

  lay(section, meanings) {
    const charts = section.charts.map((spec) => new Chart(spec, meanings));
    this.charts.push(...charts);
    const title = `${section.key}-title`;
    byId("charts").append(el("section", { id: section.key, "aria-labelledby": title },
      el("h2", { id: title }, section.title), el("p", { class: "quiet" }, section.question),
      section.key === "throughput" ? el("p", { id: "bottleneck" }) : null,
      el("div", { class: "charts" }, ...charts.map((chart) => chart.figure))));
  }

  chooser() {
    for (const [axis, label] of [["step", "optimiser step"], ["time", "wall time"], ["tokens", "tokens sampled"]]) {
      const choice = el("input", { type: "radio", name: "axis", value: axis, checked: axis === this.axis || undefined,
        onchange: () => { this.axis = axis; this.fetch(); } });
      byId("axis").append(el("label", {}, choice, ` ${label}`));
    }
  }

  async fetch(charts = this.charts) {
    await Promise.all(charts.map(async (chart) => {
      const query = new URLSearchParams([["x", this.axis], ["points", POINTS], ...chart.names.map((name) => ["name", name])]);
      const axis = this.axis;
      const answer = await ask(`series?${query}`).catch(() => null);
      if (!answer || axis !== this.axis) return;
      chart.set(answer.series, answer.upto);
      chart.draw(axis);
    }));
  }

  add(points) {
    if (this.axis === "tokens") return;
    const full = new Set();
    for (const [id, ts, step, name, value] of points) {
      for (const chart of this.charts) {
        if (id > (chart.upto ?? Infinity) && chart.add(name, this.axis === "time" ? ts : step, value)) full.add(chart);
      }
    }
    if (full.size) this.fetch([...full]);
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.charts.filter((chart) => chart.stale || !chart.chart).forEach((chart) => chart.draw(this.axis));
    });
  }
}

export function tellBottleneck(found) {
  const box = byId("bottleneck");
  if (!box) return;
  const parts = [["waiting for rollouts", found.wait_groups_seconds], ["handing over weights", found.load_weights_seconds],
    ["learning", found.learn_seconds]].filter(([, value]) => value !== null);
  const seconds = parts.map(([label, value]) => `${label} ${number(value)} s`).join(" · ");
  setText(box, `Bottleneck: ${found.name} — ${found.why}.${seconds ? ` Of ${number(found.step_seconds)} s a step: ${seconds}.` : ""}`);
}

