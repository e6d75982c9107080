// Assembles the page. Events are queued as they arrive and drawn once per animation frame.

import { Counters } from "./counters.js";
import { byId } from "./dom.js";
import { EngineState } from "./state.js";
import { Playground } from "./playground.js";
import { Prove } from "./prove.js";
import { listen } from "./events.js";
import { RequestCards } from "./requests.js";
import { followedModel, showReplicas } from "./replicas.js";
import { startTheme } from "./theme.js";
import { startTips } from "./tips.js";
import { Timeline } from "./timeline.js";

const LINK_STATUS = { open: "live", waiting: "connecting", lost: "not connected", paused: "paused" };

const state = new EngineState();
const counters = new Counters(byId("counters"));
const timeline = new Timeline(byId("timeline"), byId("step-note"));
const cards = new RequestCards(byId("requests"), byId("empty"));
let queue = []; // events not drawn yet
let isScheduled = false;
let model = "";

function enqueue(event) {
  if (event.isSnapshot) queue = queue.filter((one) => one.isRestart); // it replaces all earlier steps
  queue.push(event);
  if (!isScheduled) { isScheduled = true; requestAnimationFrame(render); }
}

function render(now) {
  isScheduled = false;
  const events = queue;
  queue = [];
  for (const { isSnapshot, isRestart, data } of events) {
    if (isRestart) {
      timeline.push(data);
    } else if (isSnapshot) {
      state.applySnapshot(data);
      cards.reset(state);
    } else {
      timeline.push(data);
      cards.update(state.applyStep(data), data.ended, state);
      state.remove(data.ended);
    }
  }
  cards.finishFrame(state);
  if (events.length) timeline.render();
  counters.render(state, now);
}

async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// Shows model, version, fingerprint, and what to expect of a built-in model. The fingerprint is not available while the engine loads.
async function showServerInfo() {
  try {
    const [models, version] = await Promise.all([get("v1/models"), get("version")]);
    const shown = models.data.find((one) => one.id === followedModel()) ?? models.data[0];
    model = shown.id;
    const hint = shown.about ?? "";
    byId("hint").textContent = hint;
    byId("hint").hidden = hint === "";
    const about = `${model} · holdfast ${version.version}`;
    byId("model").textContent = `${about} · loading`;
    const { fingerprint, state } = await get(`v1/certificate?model=${encodeURIComponent(model)}`);
    byId("model").textContent = about;
    const certifying = state.state === "certifying";
    byId("fingerprint").textContent = `fingerprint ${fingerprint.digest} · ${certifying ? `certifying, ${state.checks_done} of ${state.checks || "…"} checks: answers are verified until then` : state.state}`;
    if (certifying) setTimeout(showServerInfo, 2000);
  } catch {
    setTimeout(showServerInfo, 3000);
  }
}

startTips();
startTheme(byId("theme"), () => { timeline.readColours(); timeline.render(); });
showReplicas();
listen({
  onSnapshot: (data) => enqueue({ isSnapshot: true, data }),
  onStep: (data) => enqueue({ isSnapshot: false, data }),
  onRestart: (data) => enqueue({ isRestart: true, data }),
  onStatus: (status) => { byId("link").dataset.state = status; byId("link-text").textContent = LINK_STATUS[status]; },
});
setInterval(() => { if (!document.hidden) counters.render(state, performance.now()); }, 500); // the token rate drops to 0 when no step arrives
new Playground(() => model);
new Prove(() => model);
showServerInfo();
