// The passes of the last steps, one column per step; the height shows the number of tokens. Fast passes are hatched, canonical
// ones solid, certified ones have a cap, spot checks are outlined. Padding is pale. A line marks a restart of the engine process.

import { make, plural } from "./dom.js";

const KEPT = 400, COLUMN = 9, GAP = 2, EDGE = 10;
const COLOURS = ["yellow", "yellow-line", "yellow-deep", "green", "green-line", "green-deep", "violet", "line", "ink"];

export class Timeline {
  constructor(canvas, note) {
    this.canvas = canvas;
    this.note = note;
    this.steps = [];
    this.selected = null; // the step under the pointer
    this.context = canvas.getContext("2d");
    canvas.addEventListener("pointermove", (event) => this.#select(this.#columnAt(event)));
    canvas.addEventListener("pointerleave", () => this.#select(null));
    canvas.addEventListener("blur", () => this.#select(null));
    canvas.addEventListener("keydown", (event) => this.#selectByKey(event));
    new ResizeObserver(() => this.#resize()).observe(canvas);
    this.readColours();
    this.#resize();
  }

  // A step, or a restart of the engine process: { restart: reason, requests: how many continue }.
  push(step) {
    if (step.restart === undefined && step.passes.length === 0) return;
    this.steps.push(step);
    if (this.steps.length > KEPT) this.steps.splice(0, this.steps.length - KEPT);
  }

  // Resolves the theme's colours for the canvas.
  readColours() {
    const probe = document.body.appendChild(make("i", { hidden: true }));
    this.colours = {};
    for (const name of COLOURS) {
      probe.style.color = `var(--${name})`;
      this.colours[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    this.hatch = null;
  }

  render() {
    const { context, width, height } = this;
    context.clearRect(0, 0, width, height);
    const shown = this.steps.slice(-Math.floor((width - 2 * EDGE) / COLUMN));
    this.shown = shown;
    const maxHeight = Math.max(16, ...shown.map((step) => (step.passes ?? []).reduce((sum, one) => sum + Math.sqrt(one.num_tokens_padded), 0) ** 2));
    const unit = (height - 2 * EDGE - 8) / Math.sqrt(maxHeight);
    context.fillStyle = this.colours.line;
    context.fillRect(EDGE, height - EDGE, width - 2 * EDGE, 1);
    shown.forEach((step, index) => this.#drawStep(step, width - EDGE - (shown.length - index) * COLUMN, unit));
    this.#describe();
  }

  #drawStep(step, x, unit) {
    let bottom = this.height - EDGE;
    if (step.restart !== undefined) {
      this.context.fillStyle = this.colours.ink;
      this.context.fillRect(x + (COLUMN - GAP) / 2 - 1, EDGE, 2, this.height - 2 * EDGE);
      bottom = EDGE;
    }
    for (const one of step.passes ?? []) {
      const whole = Math.max(3, Math.sqrt(one.num_tokens_padded) * unit);
      this.#drawPass(one, x, bottom, COLUMN - GAP, Math.max(2, whole * Math.sqrt(one.num_tokens / one.num_tokens_padded)), whole);
      bottom -= whole + 2;
    }
    if (step === this.selected) {
      this.context.strokeStyle = this.colours.ink;
      this.context.strokeRect(x - 1.5, bottom - 0.5, COLUMN - GAP + 3, this.height - EDGE - bottom + 2);
    }
  }

  #drawPass(one, x, bottom, width, used, whole) {
    const { context, colours } = this;
    if (one.kind === "check") {
      context.strokeStyle = colours.violet;
      context.strokeRect(x + 0.5, bottom - whole + 0.5, width - 1, whole - 1);
      return;
    }
    const fast = one.kind === "fast";
    context.fillStyle = fast ? colours.yellow : colours.green;
    context.fillRect(x, bottom - whole, width, whole);
    context.fillStyle = fast ? this.#hatching() : one.certified ? colours.green : colours["green-deep"];
    context.fillRect(x, bottom - used, width, used);
    context.strokeStyle = fast ? colours["yellow-line"] : colours["green-line"];
    context.strokeRect(x + 0.5, bottom - used + 0.5, width - 1, Math.max(1, used - 1));
    if (one.certified) {
      context.fillStyle = colours["green-line"];
      context.fillRect(x, bottom - used, width, Math.min(4, used));
    }
  }

  #hatching() {
    if (this.hatch === null) {
      const tile = make("canvas", { width: 4, height: 4 });
      const context = tile.getContext("2d");
      context.fillStyle = this.colours.yellow;
      context.fillRect(0, 0, 4, 4);
      context.fillStyle = this.colours["yellow-deep"];
      for (let row = 0; row < 4; row += 1) for (const shift of [0, 1]) context.fillRect((row + shift) % 4, row, 1, 1);
      this.hatch = this.context.createPattern(tile, "repeat");
    }
    return this.hatch;
  }

  #describe() {
    const step = this.selected ?? this.steps.at(-1);
    if (step === undefined) return;
    if (step.restart !== undefined) {
      this.note.textContent = `Restart: the engine process ${step.restart}; ${plural(step.requests, "request")} continued in the next one.`;
      return;
    }
    const passes = step.passes.map((one) => {
      const kind = one.certified ? "certified" : one.kind === "check" ? "spot check" : one.kind;
      const padding = one.num_tokens_padded > one.num_tokens ? ` padded to ${one.num_tokens_padded}` : "";
      return `${kind} pass, ${plural(one.num_tokens, "token")}${padding} of ${plural(new Set(one.spans.map((span) => span[0])).size, "request")}`;
    });
    this.note.textContent = `Step ${step.step}, ${step.ms.toFixed(1)} ms: ${passes.join("; ")}.`;
  }

  #select(step) {
    if (step === this.selected) return;
    this.selected = step;
    this.render();
  }

  #columnAt(event) {
    const right = this.canvas.getBoundingClientRect().right - EDGE - event.clientX;
    const index = this.shown.length - 1 - Math.floor(right / COLUMN);
    return this.shown[index] ?? null;
  }

  #selectByKey(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || this.shown.length === 0) return;
    event.preventDefault();
    const from = this.selected === null ? this.shown.length : this.shown.indexOf(this.selected);
    this.#select(this.shown[Math.min(Math.max(from + by, 0), this.shown.length - 1)]);
  }

  #resize() {
    const scale = devicePixelRatio || 1;
    const box = this.canvas.getBoundingClientRect();
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.render();
  }
}
