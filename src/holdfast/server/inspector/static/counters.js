// The numbers above everything: of what this page has seen since it was opened, and of what is there now.

import { make } from "./dom.js";

const WINDOW_MS = 2000;

export class Counters {
  constructor(list) {
    this.values = {};
    this.marks = []; // [time, tokens so far], of the last moments
    for (const [name, label, sign] of [
      ["speed", "Tokens/s", ""],
      ["requests", "Running", ""],
      ["candidates", "Candidates", "candidate"],
      ["accepted", "Accepted", "committed"],
      ["rolled", "Rolled back", "rolled"],
      ["pages", "KV pages", ""],
    ]) {
      const term = make("dt", {}, ...(sign ? [make("i", { className: sign })] : []), label);
      this.values[name] = make("dd", { textContent: "0" });
      const block = make("div", {}, term, this.values[name]);
      block.dataset.counter = name;
      list.append(block);
    }
    this.gauge = make("span");
    this.values.pages.after(make("dd", { className: "gauge", ariaHidden: "true" }, this.gauge));
  }

  render(ledger, now) {
    const { counts, totals } = ledger;
    this.#put("speed", this.#speed(counts.tokens, now));
    this.#put("requests", String(totals.running), totals.waiting ? `+ ${totals.waiting} waiting` : "");
    this.#put("candidates", counts.candidates.toLocaleString("en"));
    this.#put("accepted", counts.accepted.toLocaleString("en"), share(counts.accepted, counts.accepted + counts.rolled));
    this.#put("rolled", counts.rolled.toLocaleString("en"));
    this.#put("pages", String(totals.pages), totals.all_pages ? `of ${totals.all_pages.toLocaleString("en")}` : "");
    this.gauge.style.width = `${totals.all_pages ? (100 * totals.pages) / totals.all_pages : 0}%`;
  }

  #speed(tokens, now) {
    if (this.marks.length === 0 || this.marks.at(-1)[1] !== tokens) this.marks.push([now, tokens]);
    while (this.marks.length > 1 && now - this.marks[0][0] > WINDOW_MS) this.marks.shift();
    const [since, before] = this.marks[0];
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
