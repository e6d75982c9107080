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
      ledger.forget(data.ended);
    }
  }
  strips.settle(ledger);
  if (events.length) timeline.render();
  counters.render(ledger, now);
}

async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// Which model, which version, which fingerprint. While the engine loads, the last one is not known.
async function introduce() {
  try {
    const [models, version] = await Promise.all([get("v1/models"), get("version")]);
    model = models.data[0].id;
    const about = `${model} · holdfast ${version.version}`;
    byId("model").textContent = `${about} · loading`;
    const { fingerprint } = await get("v1/certificate");
    byId("model").textContent = about;
    byId("fingerprint").textContent = `fingerprint ${fingerprint.digest}`;
  } catch {
    setTimeout(introduce, 3000);
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
