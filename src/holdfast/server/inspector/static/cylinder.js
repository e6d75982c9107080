// A request's KV cache as a cylinder that fills from the top. Its height is the number of pages the request holds. Blue is
// the prompt, green is canonical KV of generated tokens, yellow is KV of fast passes, grey belongs to ordinary requests.

import { draw, plural } from "./dom.js";

const TOP = 11, HEIGHT = 80;
const ROLLED_BACK_MS = 1500;

export class Cylinder {
  constructor() {
    this.levels = {};
    const levels = ["rolled-back", "candidate", "ordinary", "committed", "prompt", "cached"].map((name) => {
      // Each level is a plug that hangs from the top, clipped by the barrel. Later levels cover earlier ones.
      const plug = draw("g", { class: `level ${name}` },
        draw("rect", { x: 4, y: -100, width: 56, height: 100 }),
        draw("ellipse", { cx: 32, cy: 0, rx: 28, ry: 7 }));
      this.levels[name] = plug;
      return plug;
    });
    this.title = draw("title"); // the tooltip
    this.label = draw("text", { x: 32, y: 112 });
    this.element = draw("svg", { class: "cylinder", viewBox: "0 0 64 116", role: "img" },
      this.title,
      draw("path", { class: "shell", d: "M4 11 V91 A28 7 0 0 0 60 91 V11" }),
      draw("g", { "clip-path": "url(#barrel)" }, ...levels),
      draw("path", { class: "rim", d: "M4 11 V91 A28 7 0 0 0 60 91 V11" }),
      draw("ellipse", { class: "lid", cx: 32, cy: TOP, rx: 28, ry: 7 }),
      this.label);
    this.show({ prompt: 0, cached: 0, canonical: 0, computed: 0, committed: 0, pages: 0, deterministic: true }, 1);
  }

  show(request, pageSize) {
    const { prompt, cached, canonical, computed, deterministic } = request;
    this.capacity = Math.max(request.pages * pageSize, computed, 1);
    const levelAt = (length) => (length > 0 ? this.#depth(length) : -20);
    const valid = deterministic ? canonical : computed;
    this.#move("cached", levelAt(Math.min(cached, prompt, computed)));
    this.#move("prompt", levelAt(Math.min(prompt, deterministic ? Math.max(canonical, cached) : computed)));
    this.#move("committed", levelAt(deterministic && valid > prompt ? valid : 0));
    this.#move("ordinary", levelAt(!deterministic && valid > prompt ? valid : 0));
    this.#move("candidate", levelAt(deterministic && computed > canonical ? computed : 0));
    this.element.classList.toggle("filled", computed > 0);
    this.label.textContent = computed > 0 && request.pages === 0 ? "freed" : plural(request.pages, "page");
    const text = `KV cache: ${computed} positions computed, ${canonical} canonical, ${this.label.textContent}`;
    this.element.setAttribute("aria-label", text);
    this.title.textContent = text;
  }

  // The positions that were rolled back flash red.
  rollBack(length) {
    this.#move("rolled-back", this.#depth(length));
    const end = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1 : 0;
    this.levels["rolled-back"].animate([{ opacity: 1 }, { opacity: 1, offset: 0.45 }, { opacity: end }], ROLLED_BACK_MS);
  }

  #depth(length) {
    return TOP + 1 + (HEIGHT * Math.min(length, this.capacity)) / this.capacity;
  }

  #move(name, y) {
    this.levels[name].style.transform = `translateY(${y.toFixed(1)}px)`;
  }
}
