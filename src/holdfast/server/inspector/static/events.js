// Subscribes to the engine's steps. A hidden page unsubscribes, so that the engine does not trace for it.

import { followed, followedModel } from "./replicas.js";

const PAUSE_MS = 5000; // after this time in the background; also the delay before a retry

export function listen({ onSnapshot, onStep, onRestart, onStatus }) {
  let source = null;
  let hiding = 0;

  function open() {
    if (source !== null) return;
    onStatus("waiting");
    const model = followedModel();
    const query = new URLSearchParams({ replica: followed(), ...(model && { model }) });
    source = new EventSource(`inspector/events?${query}`);
    source.addEventListener("open", () => onStatus("open"));
    source.addEventListener("snapshot", (event) => onSnapshot(JSON.parse(event.data)));
    source.addEventListener("step", (event) => onStep(JSON.parse(event.data)));
    source.addEventListener("restart", (event) => onRestart(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return onStatus("waiting"); // the browser reconnects by itself
      close(); // refused: too many pages are open
      onStatus("lost");
      setTimeout(() => { if (!document.hidden) open(); }, PAUSE_MS);
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (!document.hidden) return open();
    hiding = setTimeout(() => { close(); onStatus("paused"); }, PAUSE_MS);
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
}
