// The counters at the top: totals since this page was opened, and the engine's current state.

import { make } from "./dom.js";

const WINDOW_MS = 2000;

export class Counters {
  constructor(list) {
    this.values = {};
    this.samples = []; // [time, tokens so far] of the last two seconds
    for (const [name, label, kind, tip] of [
      ["speed", "Tokens/s", "", "Committed tokens per second of all requests, over the last two seconds"],
      ["requests", "Running", "", "Requests in the engine’s batch now, and those that wait for a place"],
      ["candidates", "Candidates", "candidate", "Tokens that fast passes proposed for deterministic requests, since this page was opened"],
      ["accepted", "Accepted", "committed", "Candidates that a canonical pass confirmed, and their share of all that were verified"],
      ["rolled-back", "Rolled back", "rolled-back", "Candidates that a canonical pass rejected; clients never saw them"],
      ["pages", "KV pages", "", "Pages of the KV cache that hold keys and values now, of all pages"],
    ]) {
      const term = make("dt", {}, ...(kind ? [make("i", { className: kind })] : []), label);
      this.values[name] = make("dd", { textContent: "0" });
      const block = make("div", { title: tip, tabIndex: 0 }, term, this.values[name]);
      block.dataset.counter = name;
      list.append(block);
    }
    this.gauge = make("span");
    this.values.pages.after(make("dd", { className: "gauge", ariaHidden: "true" }, this.gauge));
  }

  render(state, now) {
    const { counts, engine } = state;
    this.#put("speed", this.#speed(counts.tokens, now));
    this.#put("requests", String(engine.running), engine.waiting ? `+ ${engine.waiting} waiting` : "");
    this.#put("candidates", counts.candidates.toLocaleString("en"));
    this.#put("accepted", counts.accepted.toLocaleString("en"), share(counts.accepted, counts.accepted + counts.rolledBack));
    this.#put("rolled-back", counts.rolledBack.toLocaleString("en"));
    this.#put("pages", String(engine.pages_used), engine.num_pages ? `of ${engine.num_pages.toLocaleString("en")}` : "");
    this.gauge.style.width = `${engine.num_pages ? (100 * engine.pages_used) / engine.num_pages : 0}%`;
  }

  #speed(tokens, now) {
    if (this.samples.length === 0 || this.samples.at(-1)[1] !== tokens) this.samples.push([now, tokens]);
    while (this.samples.length > 1 && now - this.samples[0][0] > WINDOW_MS) this.samples.shift();
    const [since, before] = this.samples[0];
    const speed = tokens > before ? ((tokens - before) * 1000) / Math.max(now - since, 250) : 0;
    return speed >= 10 || speed === 0 ? speed.toFixed(0) : speed.toFixed(1);
  }

  #put(name, text, small = "") {
    const value = this.values[name];
    const whole = small ? `${text} ${small}` : text;
    if (value.textContent === whole) return;
    value.replaceChildren(text, ...(small ? [make("small", { textContent: ` ${small}` })] : []));
  }
}

const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "");
