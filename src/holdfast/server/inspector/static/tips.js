// Tooltips for keyboards and touch screens. A mouse gets the browser's own from the same title attributes.

import { byId } from "./dom.js";

const EDGE = 8;

export function startTips() {
  const tip = byId("tip");
  const show = (element) => {
    if (element === null || element.title === "") return hide();
    tip.textContent = element.title;
    tip.hidden = false;
    const { left, bottom, top } = element.getBoundingClientRect();
    const room = document.documentElement.clientWidth - tip.offsetWidth - EDGE;
    const below = bottom + EDGE + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(EDGE, Math.min(left, room))}px`;
    tip.style.top = `${below ? bottom + EDGE : Math.max(EDGE, top - EDGE - tip.offsetHeight)}px`;
  };
  const hide = () => { tip.hidden = true; };

  document.addEventListener("focusin", ({ target }) => (target.matches(":focus-visible") ? show(target.closest("[title]")) : hide()));
  document.addEventListener("focusout", hide);
  document.addEventListener("click", ({ target, pointerType }) => {
    if (pointerType === "touch") show(target.closest("[title]"));
  });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
  addEventListener("scroll", hide, { capture: true, passive: true });
}
