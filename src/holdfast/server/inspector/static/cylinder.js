// A request's KV cache, as the seeds draw it: a cylinder, filled from the top. Blue is the prompt, green what is canonical
// behind it, yellow what fast passes wrote; grey belongs to ordinary requests. Its height is that of the pages held.

import { draw, plural } from "./dom.js";

const TOP = 11, HEIGHT = 80;
const ROLLED_MS = 1500;

export class Cylinder {
  constructor() {
    this.levels = {};
    const levels = ["rolled", "candidate", "ordinary", "committed", "prompt", "cached"].map((name) => {
      // A plug hangs from the top and is clipped by the barrel; later ones cover earlier ones.
      const plug = draw("g", { class: `level ${name}` },
        draw("rect", { x: 4, y: -100, width: 56, height: 100 }),
        draw("ellipse", { cx: 32, cy: 0, rx: 28, ry: 7 }));
      this.levels[name] = plug;
      return plug;
    });
    this.label = draw("text", { x: 32, y: 112 });
    this.element = draw("svg", { class: "cylinder", viewBox: "0 0 64 116", role: "img" },
      draw("path", { class: "shell", d: "M4 11 V91 A28 7 0 0 0 60 91 V11" }),
      draw("g", { "clip-path": "url(#barrel)" }, ...levels),
      draw("path", { class: "rim", d: "M4 11 V91 A28 7 0 0 0 60 91 V11" }),
      draw("ellipse", { class: "lid", cx: 32, cy: TOP, rx: 28, ry: 7 }),
      this.label);
    this.show({ prompt: 0, cached: 0, canonical: 0, computed: 0, committed: 0, pages: 0, deterministic: true }, 1);
  }

  show(request, pageSize) {
    const { prompt, cached, canonical, computed, deterministic } = request;
    this.room = Math.max(request.pages * pageSize, computed, 1);
    const reach = (length) => (length > 0 ? this.#depth(length) : -20);
    const settled = deterministic ? canonical : computed;
    this.#move("cached", reach(Math.min(cached, prompt, computed)));
    this.#move("prompt", reach(Math.min(prompt, deterministic ? Math.max(canonical, cached) : computed)));
    this.#move("committed", reach(deterministic && settled > prompt ? settled : 0));
    this.#move("ordinary", reach(!deterministic && settled > prompt ? settled : 0));
    this.#move("candidate", reach(deterministic && computed > canonical ? computed : 0));
    this.element.classList.toggle("filled", computed > 0);
    this.label.textContent = computed > 0 && request.pages === 0 ? "freed" : plural(request.pages, "page");
    this.element.setAttribute("aria-label",
      `KV cache: ${computed} positions computed, ${canonical} canonical, ${this.label.textContent}`);
  }

  // What a rollback took away flashes red, down to where the cache reached.
  rollBack(length) {
    this.#move("rolled", this.#depth(length));
    const end = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1 : 0;
    this.levels.rolled.animate([{ opacity: 1 }, { opacity: 1, offset: 0.45 }, { opacity: end }], ROLLED_MS);
  }

  #depth(length) {
    return TOP + 1 + (HEIGHT * Math.min(length, this.room)) / this.room;
  }

  #move(name, y) {
    this.levels[name].style.transform = `translateY(${y.toFixed(1)}px)`;
  }
}
