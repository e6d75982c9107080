// Recordings of ordinary answers that differ under load, made on other machines. They are never shown as live results.

import { firstDifference } from "./compare.js";
import { make, plural, showCount } from "./dom.js";

const SHOWN_ANSWERS = 4, IDS_AROUND = 4;

let loading = null; // the request for the recordings; they do not change while the server runs

// One element per recording; none if they cannot be loaded.
export async function showRecordings() {
  loading ??= fetch("inspector/recordings.json").then((response) => (response.ok ? response.json() : []));
  try {
    return (await loading).map(showRecording);
  } catch {
    loading = null;
    return [];
  }
}

function showRecording({ date, machine, model, ordinary, controls, settings }) {
  const [first] = ordinary.answers;
  const weights = model.weights === "random" ? ", random weights" : "";
  const versions = machine.triton ? `torch ${machine.torch}, triton ${machine.triton}` : `torch ${machine.torch}`;
  const others = Math.max(...ordinary.answers.flatMap((one) => one.neighbours));
  const element = make("section", { className: "side recorded" },
    make("h3", { textContent: "Ordinary, recorded" }),
    make("p", { className: "note", textContent: `Not live: recorded on ${date} on ${machine.device}, with ${model.name}${weights}, ${model.dtype}, ${model.kernels} kernels, ${versions}.${first.text === null ? " The answers are token ids." : ""}` }),
    makeTally(ordinary),
    make("p", { className: "verdict", textContent:
      `${ordinary.runs} runs at temperature ${settings.temperature}, alone and beside up to ${others} other requests, same kernels: ${plural(ordinary.answers.length, "distinct output")}. `
      + `With determinism, under the same loads: ${plural(Math.max(...controls.map((one) => one.answers.length)), "distinct output")}.` }),
    ...ordinary.answers.slice(0, SHOWN_ANSWERS).map((one) => showAnswer(one, first)));
  element.querySelector(".verdict").dataset.outcome = "differ";
  const more = ordinary.answers.length - SHOWN_ANSWERS;
  if (more > 0) element.append(make("p", { className: "note", textContent: `and ${more} more` }));
  element.dataset.side = "recorded";
  return element;
}

function makeTally({ answers }) {
  const boxes = answers.flatMap((one, index) => Array.from({ length: one.runs }, () => {
    const box = make("i");
    box.dataset.group = index === 0 ? "0" : "1";
    return box;
  }));
  return make("div", { className: "tally", title: "One box an answer: plain like the one given alone, hatched if it differs" }, ...boxes);
}

// Text where the model has real weights, else token ids.
function showAnswer(answer, first) {
  const body = make("p", { tabIndex: 0 });
  if (answer.first_difference === null) body.append(answer.text ?? `${answer.token_ids.slice(0, 2 * IDS_AROUND).join(" ")} …`);
  else {
    const [before, changed, after] = answer.text === null ? splitIds(answer) : splitText(answer.text, first.text);
    body.append(make("span", { className: "shared", textContent: before }), make("mark", { textContent: changed, title: "first difference" }), after);
  }
  const alone = answer.neighbours.includes(0);
  const title = `${plural(answer.runs, "run")}, beside ${[...new Set(answer.neighbours)].sort((one, other) => one - other).join(", ")} other requests`;
  return make("div", { className: "group" }, showCount(answer.runs, alone, title), body);
}

function splitText(text, usual) {
  const at = firstDifference(usual, text);
  const [letter = "∎", ...rest] = text.slice(Math.max(at, 0));
  return [text.slice(0, Math.max(at, 0)), letter, rest.join("")];
}

function splitIds({ token_ids: ids, first_difference: at }) {
  const start = Math.max(0, at - IDS_AROUND);
  const before = ids.slice(start, at).join(" ");
  return [`${start ? `token ${at}: … ` : ""}${before} `, String(ids[at] ?? "∎"), ` ${ids.slice(at + 1, at + 1 + IDS_AROUND).join(" ")} …`];
}
