// The chunks of a thinking model as columns: its words, above them the state S that they add after L_in layers, T, which
// reads them after L_out layers and writes the thought Z, and C, which makes the next S of it. A guess that was wrong is
// struck out for a moment.

import { draw, make } from "./dom.js";

const WRONG_MS = 1500, END = "∎";
const TITLES = {
  z: "Z: the thought about these words; ∎ is its end. Dashed: not committed yet",
  t: "T reads the words after L_out layers and writes Z",
  c: "C makes the next state of Z; of an empty thought it makes none",
  s: "S: the state that these words add after L_in layers; faint where there is none",
};
const part = (name, ...children) => make("span", { className: name, title: TITLES[name] }, ...children);

const ROWS = () => make("div", { className: "rows" },
  make("i", { textContent: "Z" }),
  make("i", {}, "L", make("sub", { textContent: "out" })),
  make("i", {}, "L", make("sub", { textContent: "in" })));

class Column {
  constructor(first) {
    this.first = first;
    this.thought = part("z");
    this.state = part("s");
    this.compression = part("c", "C");
    this.words = make("div", { className: "words" });
    this.element = make("div", { className: "chunk" },
      this.thought,
      make("div", { className: "blocks" }, part("t", "T"), this.compression),
      this.state,
      draw("svg", { class: "arrow", viewBox: "0 0 20 30", "aria-hidden": "true" },
        draw("path", { d: "M0 6 H10 V24 H18 M14 20 L18 24 L14 28" })),
      this.words);
    this.shown = "";
  }

  show(chunk, number) {
    const { thought, wrong, is_committed: isCommitted, has_state: hasState } = chunk;
    this.state.replaceChildren(hasState ? "+ S" : "S", make("sub", { textContent: number }));
    this.state.classList.toggle("none", !hasState);
    this.element.classList.toggle("thinks", thought?.length > 0);
    this.thought.classList.toggle("speculated", thought !== null && !isCommitted);
    const shown = JSON.stringify([thought, wrong]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.thought.replaceChildren(...(thought === null ? [] : [make("b", { textContent: thought.join("").trim() }), END]));
    if (wrong !== null) this.#rollBack(wrong);
  }

  #rollBack(wrong) {
    const struck = make("s", { className: "wrong", textContent: `${wrong.join("").trim()}${END}` });
    this.thought.prepend(struck);
    setTimeout(() => struck.remove(), WRONG_MS);
  }
}

export class Columns {
  constructor(element) {
    this.element = element;
    this.columns = [];
    element.classList.add("thinking");
    element.append(ROWS());
  }

  show(chunks) {
    while (this.columns.length && this.columns[0].first < chunks[0].first) this.columns.shift().element.remove();
    chunks.forEach((chunk, index) => {
      if (this.columns[index] === undefined) {
        this.columns.push(new Column(chunk.first));
        this.element.append(this.columns[index].element);
      }
      this.columns[index].show(chunk, chunk.number);
    });
    for (const one of this.columns.splice(chunks.length)) one.element.remove();
  }

  // The words of the chunk with a position.
  at(position) {
    return (this.columns.findLast((one) => one.first <= position) ?? this.columns[0]).words;
  }
}
