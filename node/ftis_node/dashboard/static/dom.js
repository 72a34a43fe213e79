// Building the page. Text from anywhere goes in as text nodes only: nothing here ever parses markup.

export const byId = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map(asNode));
  return node;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

export function fill(parent, ...children) {
  parent.replaceChildren(...children.map(asNode));
}

// Keep what stands there already when nothing changed: no flicker, and a screen reader is not told again.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") return `${number(value)} ${unit}`;
    value /= 1000;
  }
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const clock = (ts) => new Date(ts * 1000).toLocaleString("sv");

// A tile is a <div> with <dt> and <dd>; made once, then only its text changes.
export function tile(list, key, label, meaning, text, more = "") {
  let box = list.querySelector(`[data-tile="${key}"]`);
  if (!box) {
    box = el("div", { "data-tile": key, title: meaning }, el("dt", {}, label), el("dd", {}, el("span"), el("small")));
    list.append(box);
  }
  setText(box.querySelector("span"), text);
  setText(box.querySelector("small"), more);
}
