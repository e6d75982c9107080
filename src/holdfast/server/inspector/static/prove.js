// "Prove it": sends the same prompt and seed many times, deterministic and ordinary, alone and under random load, and compares
// the outputs. Where the ordinary ones agree, it shows a recording of another machine, and says so.

import { ApiError, choiceLogprobs, post, requestFor, choiceText } from "./client.js";
import { firstDifference, group, judge, reference } from "./compare.js";
import { byId, make, showCount } from "./dom.js";
import { makeLoad, pause } from "./load.js";
import { settings } from "./playground.js";
import { showRecordings } from "./recordings.js";

const WORKERS = 3; // a browser opens six connections; events, load and the playground need one each
const SHOWN_GROUPS = 6;
const MAX_TOKENS = 24; // of each answer: the whole run takes half a minute with the default model on two CPU cores

class Side {
  constructor(title, deterministic, times) {
    this.deterministic = deterministic;
    this.times = times;
    this.outputs = [];
    this.problems = [];
    this.verdict = make("p", { className: "verdict", textContent: "Waiting." });
    this.tally = make("div", { className: "tally", title: "One box an answer: plain like the one given alone, hatched if it differs" });
    this.groups = make("div");
    this.element = make("section", { className: "side" },
      make("h3", { textContent: title }), this.tally, this.verdict, this.groups);
    this.element.dataset.side = deterministic ? "deterministic" : "ordinary";
    this.show();
  }

  get numDone() {
    return this.outputs.length + this.problems.length;
  }

  get agrees() {
    return this.outputs.length > 1 && judge(this.outputs, this.deterministic).outcome === "same";
  }

  show() {
    const groups = group(this.outputs);
    const usual = reference(groups);
    const { outcome, sentence } = judge(this.outputs, this.deterministic);
    const done = this.numDone === this.times;
    this.verdict.textContent = done ? this.#summarize(sentence) : `${this.outputs.length} of ${this.times} complete.`;
    if (done) this.verdict.dataset.outcome = this.outputs.length ? outcome : "none";
    this.tally.replaceChildren(...Array.from({ length: this.times }, (_, index) => this.#box(index, usual)));
    this.groups.replaceChildren(...groups.slice(0, SHOWN_GROUPS).map((one) => showGroup(one, usual)));
    if (groups.length > SHOWN_GROUPS) this.groups.append(make("p", { className: "note", textContent: `and ${groups.length - SHOWN_GROUPS} more` }));
  }

  // The final result, also if the run was stopped.
  close() {
    this.times = this.numDone;
    this.show();
  }

  #summarize(sentence) {
    const modes = [...new Set(this.outputs.map((output) => output.mode))].filter((mode) => mode && mode !== "none");
    const how = this.deterministic && modes.length ? ` Mode: ${modes.join(", ")}.` : "";
    const failed = this.problems.length ? ` ${this.problems.length} failed: ${this.problems[0]}` : "";
    return `${sentence}${how}${failed}`;
  }

  #box(index, usual) {
    const box = make("i");
    const output = this.outputs[index];
    if (output !== undefined) box.dataset.group = output.text === usual.text ? "0" : "1";
    else if (index >= this.times - this.problems.length) box.dataset.group = "x";
    return box;
  }
}

// A text and its count. The first difference from the usual text is marked.
function showGroup({ text, members }, usual) {
  const at = text === usual.text ? -1 : firstDifference(usual.text, text);
  const body = make("p", { tabIndex: 0 });
  if (at < 0) body.append(text);
  else {
    const rest = [...text.slice(at)];
    body.append(
      make("span", { className: "shared", textContent: text.slice(0, at) }),
      make("mark", { textContent: rest[0] ?? "∎", title: "first difference" }),
      rest.slice(1).join(""));
  }
  const alone = members.some((output) => output.alone);
  const title = `${members.length} of the answers${alone ? ", among them the one given without other requests" : ""}`;
  return make("div", { className: "group" }, showCount(members.length, alone, title), body);
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
    const form = settings();
    if (!form.prompt || !byId("ask").reportValidity()) return;
    const seed = form.seed ?? Math.floor(Math.random() * 2 ** 31);
    const sides = [new Side("Deterministic", true, times), new Side("Ordinary", false, times)];
    byId("sides").replaceChildren(...sides.map((side) => side.element));
    byId("proof").hidden = false;
    this.abort = new AbortController();
    this.started = performance.now();
    this.#setBusy(true);
    this.#showProgress(sides);
    await this.#sendAll(sides, { ...form, seed, maxTokens: Math.min(form.maxTokens, MAX_TOKENS) }, this.abort.signal);
    const stopped = this.abort.signal.aborted;
    this.abort.abort(); // the load
    this.abort = null;
    for (const side of sides) side.close();
    this.#setBusy(false);
    const seconds = ((performance.now() - this.started) / 1000).toFixed(0);
    byId("prove-note").textContent = `${stopped ? "Stopped" : "Done"} after ${seconds} s. Prompt, settings and seed ${seed} were the same in every request.`;
    if (!stopped && sides[1].agrees) byId("sides").append(...await showRecordings());
  }

  // First each side alone, then all others under load.
  async #sendAll(sides, form, signal) {
    for (const side of sides) await this.#sendOne(side, form, signal, sides, true);
    const jobs = shuffle(sides.flatMap((side) => Array.from({ length: side.times - 1 }, () => side)));
    const work = async () => {
      while (jobs.length && !signal.aborted) {
        await this.#sendOne(jobs.pop(), form, signal, sides, false);
        await pause(Math.random() * 80);
      }
    };
    makeLoad(this.modelName(), signal);
    await Promise.all(Array.from({ length: WORKERS }, work));
  }

  async #sendOne(side, form, signal, sides, alone) {
    const logprobs = form.mode === "chat" ? { logprobs: true } : { logprobs: 0 };
    const [path, body] = requestFor({ ...form, deterministic: side.deterministic, model: this.modelName(), ...logprobs });
    try {
      const answer = await (await post(path, body, signal)).json();
      const choice = answer.choices[0];
      side.outputs.push({ text: choiceText(choice), logprobs: choiceLogprobs(choice), mode: answer.holdfast?.mode, alone });
    } catch (error) {
      if (signal.aborted) return;
      side.problems.push(error instanceof ApiError ? error.message : "the server cannot be reached");
    }
    side.show();
    this.#showProgress(sides);
  }

  #showProgress(sides) {
    const [done, all] = [sides[0].numDone + sides[1].numDone, sides[0].times + sides[1].times];
    const left = done > 2 ? Math.ceil(((performance.now() - this.started) / 1000 / done) * (all - done)) : null;
    byId("prove-progress").value = done / all;
    byId("prove-note").textContent = `${done} of ${all} answers${left === null ? "" : `, about ${left} s left`}.`;
  }

  #setBusy(on) {
    byId("prove-go").disabled = on;
    byId("prove-stop").disabled = !on;
    byId("prove-progress").hidden = !on;
  }
}

function shuffle(list) {
  for (let index = list.length - 1; index > 0; index -= 1) {
    const other = Math.floor(Math.random() * (index + 1));
    [list[index], list[other]] = [list[other], list[index]];
  }
  return list;
}
