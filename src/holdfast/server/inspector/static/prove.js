// "Prove it": the same prompt and seed many times, deterministic and not, mixed, under random load; then the outputs side by side.

import { Refused, logprobsOf, post, question, textOf } from "./ask.js";
import { firstDifference, group, judge } from "./compare.js";
import { byId, make } from "./dom.js";
import { makeLoad, pause } from "./load.js";
import { settings } from "./playground.js";

const WORKERS = 3; // of the six connections a browser opens: one listens, one makes load, one is left for the playground
const SHOWN_GROUPS = 6;

class Side {
  constructor(title, deterministic, times) {
    this.deterministic = deterministic;
    this.times = times;
    this.outputs = [];
    this.problems = [];
    this.verdict = make("p", { className: "verdict", textContent: "Waiting." });
    this.tally = make("div", { className: "tally", ariaHidden: "true" });
    this.groups = make("div");
    this.element = make("section", { className: "side" },
      make("h3", { textContent: title }), this.tally, this.verdict, this.groups);
    this.element.dataset.side = deterministic ? "deterministic" : "ordinary";
    this.show();
  }

  show() {
    const groups = group(this.outputs);
    const { outcome, sentence } = judge(this.outputs, this.deterministic);
    const done = this.outputs.length + this.problems.length === this.times;
    this.verdict.textContent = done ? this.#sum(sentence) : `${this.outputs.length} of ${this.times} answered.`;
    if (done) this.verdict.dataset.outcome = this.outputs.length ? outcome : "none";
    this.tally.replaceChildren(...Array.from({ length: this.times }, (_, index) => this.#box(index, groups)));
    this.groups.replaceChildren(...groups.slice(0, SHOWN_GROUPS).map((one) => showGroup(one, groups[0])));
    if (groups.length > SHOWN_GROUPS) this.groups.append(make("p", { className: "note", textContent: `and ${groups.length - SHOWN_GROUPS} more` }));
  }

  // How it stands when no more will come.
  close() {
    this.times = this.outputs.length + this.problems.length;
    this.show();
  }

  #sum(sentence) {
    const modes = [...new Set(this.outputs.map((output) => output.mode))].filter((mode) => mode && mode !== "none");
    const how = this.deterministic && modes.length ? ` Mode: ${modes.join(", ")}.` : "";
    const refused = this.problems.length ? ` ${this.problems.length} got no answer: ${this.problems[0]}` : "";
    return `${sentence}${how}${refused}`;
  }

  #box(index, groups) {
    const box = make("i");
    const output = this.outputs[index];
    if (output !== undefined) box.dataset.group = output.text === groups[0].text ? "0" : "1";
    else if (index >= this.times - this.problems.length) box.dataset.group = "x";
    return box;
  }
}

// A text and how often it came; behind the first difference to the commonest one it is marked.
function showGroup({ text, members }, commonest) {
  const at = text === commonest.text ? -1 : firstDifference(commonest.text, text);
  const body = make("p", { tabIndex: 0 });
  if (at < 0) body.append(text);
  else {
    const rest = [...text.slice(at)];
    body.append(
      make("span", { className: "shared", textContent: text.slice(0, at) }),
      make("mark", { textContent: rest[0] ?? "∎", title: "the first difference" }),
      rest.slice(1).join(""));
  }
  return make("div", { className: "group" }, make("b", { textContent: `${members.length} ×` }), body);
}

export class Prove {
  constructor(modelName) {
    this.modelName = modelName;
    this.abort = null;
    byId("prove").addEventListener("submit", (event) => { event.preventDefault(); this.#run(); });
    byId("prove-stop").addEventListener("click", () => this.abort?.abort());
  }

  async #run() {
    if (this.abort !== null) return;
    const times = Number.parseInt(byId("times").value, 10);
    const asked = settings();
    if (!asked.prompt || !byId("ask").reportValidity()) return;
    const seed = asked.seed ?? Math.floor(Math.random() * 2 ** 31);
    const sides = [new Side("Deterministic", true, times), new Side("Ordinary", false, times)];
    byId("sides").replaceChildren(...sides.map((side) => side.element));
    this.abort = new AbortController();
    this.#busy(true, `Asking with seed ${seed}, under random load.`);
    await this.#ask(sides, { ...asked, seed }, this.abort.signal);
    const stopped = this.abort.signal.aborted;
    this.abort.abort(); // the load
    this.abort = null;
    for (const side of sides) side.close();
    this.#busy(false, `${stopped ? "Stopped." : "Done."} Prompt, settings and seed ${seed} were the same everywhere.`);
  }

  async #ask(sides, asked, signal) {
    const jobs = shuffle(sides.flatMap((side) => Array.from({ length: side.times }, () => side)));
    const work = async () => {
      while (jobs.length && !signal.aborted) {
        await this.#askOnce(jobs.pop(), asked, signal);
        await pause(Math.random() * 80);
      }
    };
    makeLoad(this.modelName(), signal);
    await Promise.all(Array.from({ length: WORKERS }, work));
  }

  async #askOnce(side, asked, signal) {
    const logprobs = asked.mode === "chat" ? { logprobs: true } : { logprobs: 0 };
    const [path, body] = question({ ...asked, deterministic: side.deterministic, model: this.modelName(), ...logprobs });
    try {
      const answer = await (await post(path, body, signal)).json();
      const choice = answer.choices[0];
      side.outputs.push({ text: textOf(choice), logprobs: logprobsOf(choice), mode: answer.holdfast?.mode });
    } catch (error) {
      if (signal.aborted) return;
      side.problems.push(error instanceof Refused ? error.message : "the server cannot be reached");
    }
    side.show();
  }

  #busy(on, note) {
    byId("prove-go").disabled = on;
    byId("prove-stop").disabled = !on;
    byId("prove-note").textContent = note;
  }
}

function shuffle(list) {
  for (let index = list.length - 1; index > 0; index -= 1) {
    const other = Math.floor(Math.random() * (index + 1));
    [list[index], list[other]] = [list[other], list[index]];
  }
  return list;
}
