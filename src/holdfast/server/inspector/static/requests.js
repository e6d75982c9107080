// Each running request is a card: a strip of its tokens next to its KV cache. Tokens that were rolled back stay red for a
// moment, before the tokens that replaced them. Strips and the number of cards are limited; the rest is only counted.

import { Cylinder } from "./cylinder.js";
import { make, plural } from "./dom.js";
import { Columns } from "./thoughts.js";

const SHOWN = 200, CARDS = 16, COMPARED = 6;
const ROLLED_BACK_MS = 1500, ENDED_MS = 4000, LEAVING_MS = 600;

// What the figures below a request mean.
const FIGURES = {
  prompt: "Tokens of the prompt",
  cached: "Tokens of the prompt whose KV pages an earlier request left behind",
  committed: "Tokens of the answer that are final",
  canonical: "Positions of the KV cache with canonical bits",
  accepted: "Candidates that a canonical pass confirmed",
  rolledBack: "Candidates that a canonical pass rejected",
  candidates: "Tokens that wait for a canonical pass",
};
const GLYPHS = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

// A token with its whitespace made visible.
export function visible(text) {
  if (text === "") return "□";
  if (text === " ") return "␣";
  return text.replace(/[\n\t\r]/g, (letter) => GLYPHS[letter]).replace(/[\u0000-\u001f\u007f]/g, "\ufffd");
}

const subscript = (number) => String(number).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));
const chip = (text, state) => make("span", { className: `token ${state}`, textContent: visible(text) });

class Strip {
  constructor() {
    this.element = make("div", { className: "strip", tabIndex: 0 });
    this.earlier = make("span", { className: "earlier", hidden: true });
    this.element.append(this.earlier);
    this.chips = []; // committed tokens, the first at position this.start
    this.start = 0;
    this.candidates = [];
    this.columns = null; // of the chunks of a thinking model
    this.follows = true; // keeps the end in view until the user scrolls up
    this.element.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      this.follows = scrollHeight - scrollTop - clientHeight < 24;
    }, { passive: true });
  }

  show(request, isNew) {
    this.#dropCandidates();
    if (request.chunks) (this.columns ??= new Columns(this.element)).show(request.chunks);
    this.#commit(request, isNew);
    if (request.rolled_back?.length) this.#rollBack(request);
    this.candidates = request.candidates.map((text, index) => {
      const one = chip(text, request.deterministic ? "candidate" : "ordinary");
      this.#place(request.committed + index).append(one);
      return one;
    });
    this.#shorten();
    this.chips.forEach((one, index) => one.classList.toggle("unwritten", this.start + index >= request.computed));
  }

  // What holds the token at a position.
  #place(position) {
    return this.columns?.at(position) ?? this.element;
  }

  scrollToEnd() {
    if (this.follows) this.element.scrollTop = 1e6;
  }

  #dropCandidates() {
    for (const one of this.candidates) one.remove();
    this.candidates = [];
  }

  #commit(request, isNew) {
    let keep = request.from - this.start;
    if (keep < 0 || keep > this.chips.length) { // there is a gap before request.from
      for (const one of this.chips) one.remove();
      this.chips = [];
      this.start = request.from;
      keep = 0;
    }
    for (const one of this.chips.splice(keep)) one.remove();
    const kind = request.deterministic ? "committed" : "ordinary";
    const numAccepted = isNew ? 0 : request.accepted;
    request.tokens.forEach((text, index) => {
      const isAccepted = request.from + index >= request.prompt && index < numAccepted;
      const state = request.from + index < request.prompt ? "prompt" : isAccepted ? `${kind} accepted` : kind;
      const one = chip(text, isNew ? state : `${state} fresh`);
      this.chips.push(one);
      this.#place(request.from + index).append(one);
    });
  }

  #rollBack(request) {
    const next = this.chips[request.rolled_back_from - this.start];
    const place = this.#place(request.rolled_back_from);
    for (const text of request.rolled_back.slice(-SHOWN)) {
      const one = chip(text, "rolled-back");
      place.insertBefore(one, next?.parentElement === place ? next : null);
      setTimeout(() => one.remove(), ROLLED_BACK_MS);
    }
  }

  #shorten() {
    const surplus = this.chips.length - SHOWN;
    if (surplus > 0) {
      for (const one of this.chips.splice(0, surplus)) one.remove();
      this.start += surplus;
    }
    this.earlier.hidden = this.start === 0;
    this.earlier.textContent = `… ${this.start} earlier`;
  }
}

class Card {
  constructor(request) {
    this.cylinder = new Cylinder();
    this.strip = new Strip();
    this.phase = make("span", { className: "phase", title: "What the engine does with this request: wait, read the prompt (prefill), generate (decode), or why it ended" });
    this.figures = Object.fromEntries(Object.entries(FIGURES).map(([name, title]) => [name, make("span", { title })]));
    this.facts = make("p", { className: "facts-line" }, ...Object.values(this.figures));
    this.verdicts = make("p", { className: "verdicts", hidden: true, title: "The last verification: each candidate T′ beside the token T that the canonical pass has at its place. After the first difference nothing is compared: the rest is rolled back" });
    const title = `Request ${request.id}`;
    const branch = request.first_id === request.id ? "" : `choice ${request.id - request.first_id + 1} of request ${request.first_id}`;
    this.strip.element.setAttribute("aria-label", `Tokens of request ${request.id}`);
    this.strip.element.setAttribute("role", "group");
    this.element = make("article", { className: request.deterministic ? "request deterministic" : "request" },
      make("header", {},
        make("h3", { textContent: title }),
        make("span", { className: "mode", textContent: request.deterministic ? "deterministic" : "ordinary", title: request.deterministic ? "Same tokens and logprob bits every time" : "Without the guarantee" }),
        make("span", { textContent: branch, hidden: branch === "" }),
        this.phase),
      this.cylinder.element, this.strip.element, this.verdicts, this.facts);
    this.element.dataset.request = request.id;
    this.accepted = this.rolledBack = 0;
  }

  show(request, before, pageSize) {
    this.accepted += request.accepted;
    this.rolledBack += request.rolled_back?.length ?? 0;
    this.strip.show(request, before === undefined);
    if (before && (request.accepted || request.rolled_back?.length)) this.#compare(request);
    this.element.classList.toggle("thinks", request.chunks !== undefined);
    if (request.pages > 0 || before === undefined) this.cylinder.show(request, pageSize);
    if (request.rolled_back?.length && before) this.cylinder.rollBack(request.rolled_back_from + request.rolled_back.length);
    this.phase.textContent = request.phase;
    this.#describe(request);
  }

  // Shows what a verification compared: T₁ = T₁′, T₂ ≠ T₂′, and the rejected candidates after that.
  #compare(request) {
    const rejected = request.rolled_back ?? [];
    const said = request.tokens.slice(0, request.accepted).map((text) => [text, text]);
    rejected.forEach((text, index) => said.push([index ? undefined : request.tokens[request.accepted], text]));
    const pairs = said.slice(-COMPARED).map(([token, candidate], at) => {
      const index = said.length - Math.min(said.length, COMPARED) + at + 1;
      const isSame = token === candidate;
      const sides = token === undefined ? [] : [`T${subscript(index)} `, chip(token, "committed"), isSame ? " = " : " ≠ "];
      return make("span", { className: isSame ? "same" : "differs" }, ...sides, `T${subscript(index)}′ `, chip(candidate, isSame ? "candidate" : "rolled-back"), isSame ? " ✓" : " ✗");
    });
    this.verdicts.replaceChildren(...pairs);
    this.verdicts.hidden = false;
  }

  #describe(request) {
    const parts = [["prompt", `prompt ${request.prompt}`]];
    if (request.cached) parts.push(["cached", `${request.cached} from the prefix cache`]);
    parts.push(["committed", `committed ${request.committed - request.prompt}`]);
    if (request.deterministic) {
      parts.push(["canonical", `canonical KV ${request.canonical}`]);
      if (this.accepted || this.rolledBack) parts.push(["accepted", `${this.accepted} accepted`], ["rolledBack", `${this.rolledBack} rolled back`]);
    }
    if (request.candidates.length) parts.push(["candidates", plural(request.candidates.length, "candidate")]);
    for (const [name, figure] of Object.entries(this.figures)) {
      const text = parts.find((one) => one[0] === name)?.[1] ?? "";
      if (figure.textContent !== text) figure.textContent = text;
    }
  }

  get hasEnded() {
    return this.element.classList.contains("ended");
  }

  end(reason) {
    this.element.classList.add("ended");
    this.phase.textContent = `ended: ${reason}`;
    setTimeout(() => this.element.classList.add("leaving"), ENDED_MS - LEAVING_MS);
  }
}

export class RequestCards {
  constructor(element, empty) {
    this.element = element;
    this.empty = empty;
    this.cards = new Map();
    this.more = make("p", { className: "note" });
    element.after(this.more);
  }

  // Redraws all requests.
  reset(state) {
    this.element.replaceChildren();
    this.cards.clear();
    for (const request of state.requests.values()) this.#show(request, undefined, state);
  }

  update(changed, ended, state) {
    for (const [request, before] of changed) this.#show(request, before, state);
    for (const [id, reason] of ended) this.#end(id, reason);
  }

  // Called once per frame, after all its updates.
  finishFrame(state) {
    for (const card of this.cards.values()) card.strip.scrollToEnd();
    let numHidden = 0;
    for (const id of state.requests.keys()) if (!this.cards.has(id)) numHidden += 1;
    this.more.textContent = `and ${numHidden} more`;
    this.more.hidden = numHidden === 0;
    this.#showEmpty();
  }

  #show(request, before, state) {
    let card = this.cards.get(request.id);
    if (card === undefined) {
      if (this.cards.size >= CARDS && !this.#evict()) return;
      card = new Card(request);
      this.cards.set(request.id, card);
      this.element.append(card.element);
      request = state.requests.get(request.id); // includes the tokens that arrived while it had no card
      before = undefined;
    }
    card.show(request, before, state.engine.page_size);
  }

  // Removes the card of a request that has ended, to make room for a running one.
  #evict() {
    for (const [id, card] of this.cards) {
      if (card.hasEnded) {
        this.cards.delete(id);
        card.element.remove();
        return true;
      }
    }
    return false;
  }

  #end(id, reason) {
    const card = this.cards.get(id);
    if (card === undefined) return;
    card.end(reason);
    setTimeout(() => {
      if (this.cards.get(id) !== card) return;
      this.cards.delete(id);
      card.element.remove();
      this.#showEmpty();
    }, ENDED_MS);
  }

  #showEmpty() {
    this.empty.hidden = this.cards.size > 0;
  }
}
