// The engine's steps, as the server sends them. A page nobody looks at does not listen: its engine has nothing to tell.

const QUIET_MS = 5000; // hidden for so long

export function listen({ onSnapshot, onStep, onState }) {
  let source = null;
  let hiding = 0;

  function open() {
    if (source !== null) return;
    onState("waiting");
    source = new EventSource("inspector/events");
    source.addEventListener("open", () => onState("open"));
    source.addEventListener("snapshot", (event) => onSnapshot(JSON.parse(event.data)));
    source.addEventListener("step", (event) => onStep(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return onState("waiting"); // the browser tries again by itself
      close(); // refused: as many pages watch as may
      onState("lost");
      setTimeout(() => { if (!document.hidden) open(); }, QUIET_MS);
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (!document.hidden) return open();
    hiding = setTimeout(() => { close(); onState("paused"); }, QUIET_MS);
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
}
