// Puts the page together. Events are only noted when they come; everything is drawn once a frame.

import { Counters } from "./counters.js";
import { byId } from "./dom.js";
import { Ledger } from "./ledger.js";
import { Playground } from "./playground.js";
import { Prove } from "./prove.js";
import { listen } from "./stream.js";
import { Strips } from "./strips.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";

const STATES = { open: "watching", waiting: "connecting", lost: "not connected", paused: "paused" };

const ledger = new Ledger();
const counters = new Counters(byId("counters"));
const timeline = new Timeline(byId("timeline"), byId("step-note"));
const strips = new Strips(byId("requests"), byId("empty"));
let waiting = []; // events not drawn yet
let framed = false;
let model = "";

function note(event) {
  if (event.isSnapshot) waiting = []; // it stands for all that was before
  waiting.push(event);
  if (!framed) { framed = true; requestAnimationFrame(render); }
}

function render(now) {
  framed = false;
  const events = waiting;
  waiting = [];
  for (const { isSnapshot, data } of events) {
    if (isSnapshot) {
      ledger.takeSnapshot(data);
      strips.reset(ledger);
    } else {
      timeline.push(data);
      strips.update(ledger.takeStep(data), data.ended, ledger);
    }
  }
  strips.settle(ledger);
  if (events.length) timeline.render();
  counters.render(ledger, now);
}

async function introduce() {
  try {
    const [models, version] = await Promise.all(["v1/models", "version"].map(async (path) => (await fetch(path)).json()));
    model = models.data[0].id;
    byId("model").textContent = [model, version.version && `holdfast ${version.version}`].filter(Boolean).join(" · ");
    const { fingerprint } = await (await fetch("v1/certificate")).json();
    byId("fingerprint").textContent = `fingerprint ${fingerprint.digest}`;
  } catch {
    setTimeout(introduce, 3000); // the engine is still loading
  }
}

startTheme(byId("theme"), () => { timeline.readColours(); timeline.render(); });
listen({
  onSnapshot: (data) => note({ isSnapshot: true, data }),
  onStep: (data) => note({ isSnapshot: false, data }),
  onState: (state) => { byId("link").dataset.state = state; byId("link-text").textContent = STATES[state]; },
});
setInterval(() => { if (!document.hidden) counters.render(ledger, performance.now()); }, 500); // speed falls when nothing comes
new Playground(() => model);
new Prove(() => model);
introduce();
