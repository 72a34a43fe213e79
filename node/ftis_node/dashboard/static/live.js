// How the page stays current: a stream that resumes where it broke, and questions in between when there is none.

const QUIET_MS = 4000;
const RETRY_MS = 2000;
const LATE_SECONDS = 15;

export async function ask(path, options = {}) {
  const answer = await fetch(`api/v1/${path}`, { cache: "no-store", ...options });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error || `status ${answer.status}`);
  return content;
}

export class Line {
  // `handlers`: state, points, log, rollouts, reset; `onBanner(text)` gets "" when all is well.
  constructor(handlers, onBanner) {
    this.handlers = handlers;
    this.onBanner = onBanner;
    this.heardAt = Date.now();
    this.age = 0;
    this.node = null;
    this.trouble = "";
    this.lost = false;
    setInterval(() => this.check(), 1000);
  }

  open() {
    this.stream = new EventSource("api/v1/stream");
    for (const kind of ["hello", "state", "points", "log", "rollouts", "reset", "unavailable"]) {
      this.stream.addEventListener(kind, (message) => this.hear(kind, JSON.parse(message.data)));
    }
  }

  hear(kind, content) {
    const returned = this.lost;
    this.heardAt = Date.now();
    this.lost = false;
    this.trouble = kind === "unavailable" ? content.error : "";
    if (kind === "state") this.see(content);
    else if (this.handlers[kind]) this.handlers[kind](content);
    if (returned && kind !== "unavailable") this.handlers.returned();
    this.check();
  }

  see(state) {
    this.age = state.age_seconds;
    this.node = this.node || state.node.id;
    this.other = Boolean(this.node && state.node.id && state.node.id !== this.node);
    if (!this.other) this.handlers.state(state);
  }

  async check() {
    const silent = Date.now() - this.heardAt;
    const seconds = Math.round(silent / 1000 + this.age);
    if (this.other) this.onBanner("Another node answers at this address now. Reload the page to see it.");
    else if (silent > QUIET_MS) {
      this.lost = true;
      this.onBanner(`No connection to the node. What you see is ${seconds} s old; trying again.`);
    } else if (this.trouble) this.onBanner(`The node's data cannot be read now: ${this.trouble}`);
    else if (this.age > LATE_SECONDS) this.onBanner(`The node has written nothing for ${Math.round(this.age)} s.`);
    else this.onBanner("");
    if (silent > RETRY_MS) this.again();
  }

  // The browser reopens a broken stream by itself, unless it was refused.
  async again() {
    if (this.asking) return;
    this.asking = true;
    try {
      if (!this.stream || this.stream.readyState === EventSource.CLOSED) this.open();
      const state = await ask("state");
      this.hear("state", state);
      if (this.stream.readyState !== EventSource.OPEN) this.handlers.poll();
    } catch {
      // said by the banner
    } finally {
      this.asking = false;
    }
  }
}
