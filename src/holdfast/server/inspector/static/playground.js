// The playground: a prompt and its settings, the streamed answer, and its statistics.

import { ApiError, choiceText, chunks, parseJson, post, requestFor } from "./client.js";
import { byId, describe, make } from "./dom.js";

// What the statistics below an answer mean.
const FACTS = {
  finish: "Why the answer ended: stop is its natural end, length the limit of tokens",
  mode: "How the guarantee was kept: certified at once, or verified by canonical passes; none for an ordinary request",
  seed: "Seed of the sampling noise. The same seed gives the same answer again, if the request is deterministic",
  tokens: "Tokens of the prompt and of the answer",
  candidates: "Tokens that fast passes proposed, and what canonical passes said of them",
  windows: "Groups of candidates that one canonical pass verified",
  passes: "Passes of the model that this request took part in",
  thoughts: "Thoughts the model wrote while it read, and those that add nothing",
  fingerprint: "Digest of all that decides bits. Same fingerprint, same bits",
};
const isInteger = /^[0-9]+$/;

// The values of the form. "Prove it" uses them too.
export function settings() {
  const seed = byId("seed").value.trim();
  return {
    mode: document.querySelector("input[name=mode]:checked").value,
    prompt: byId("prompt").value,
    maxTokens: Number.parseInt(byId("max-tokens").value, 10),
    temperature: Number.parseFloat(byId("temperature").value),
    seed: isInteger.test(seed) ? BigInt(seed).toString() : null,
    deterministic: byId("deterministic").checked,
  };
}

export class Playground {
  constructor(modelName) {
    this.modelName = modelName;
    this.abort = null;
    this.receipt = null;
    byId("ask").addEventListener("submit", (event) => { event.preventDefault(); this.#ask(); });
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("receipt").addEventListener("click", () => this.#download());
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
    });
  }

  async #ask() {
    if (this.abort !== null) return;
    this.abort = new AbortController();
    this.#reset();
    try {
      await this.#request(this.abort.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.#showError(error);
    } finally {
      this.abort = null;
      byId("send").disabled = false;
      byId("stop").disabled = true;
      byId("answer").removeAttribute("aria-busy");
    }
  }

  #reset() {
    byId("send").disabled = true;
    byId("stop").disabled = false;
    byId("problem").hidden = byId("facts").hidden = byId("receipt").hidden = true;
    byId("answer").replaceChildren();
    byId("answer").setAttribute("aria-busy", "true");
  }

  async #request(signal) {
    const stream = byId("stream").checked;
    const extra = stream ? { stream, stream_options: { include_usage: true } } : {};
    const [path, body] = requestFor({ ...settings(), model: this.modelName(), return_receipt: true, ...extra });
    const response = await post(path, body, signal);
    const seen = { finish: null, usage: null, holdfast: null, fingerprint: null, thoughts: [] };
    if (stream) for await (const chunk of chunks(response)) this.#addChunk(chunk, seen);
    else this.#addChunk(parseJson(await response.text()), seen);
    this.#finish(seen);
  }

  #addChunk(chunk, seen) {
    const choice = chunk.choices?.[0];
    const thoughts = chunk.holdfast?.thoughts ?? [];
    seen.thoughts.push(...thoughts);
    for (const { text, token_ids: ids } of thoughts) if (ids.length) byId("answer").append(make("i", { className: "thought", textContent: ` ‹${text}› ` }));
    byId("answer").append(choiceText(choice));
    seen.finish = choice?.finish_reason ?? seen.finish;
    seen.usage = chunk.usage ?? seen.usage;
    seen.holdfast = chunk.holdfast ?? seen.holdfast;
    seen.fingerprint = chunk.system_fingerprint ?? seen.fingerprint;
  }

  #finish({ finish, usage, holdfast, fingerprint, thoughts }) {
    const stats = holdfast?.stats ?? {};
    const facts = [["Finish", finish, FACTS.finish]];
    if (holdfast) facts.push(["Mode", holdfast.mode, FACTS.mode], ["Seed", holdfast.seed, FACTS.seed]);
    if (usage) facts.push(["Tokens", `${usage.prompt_tokens} in, ${usage.completion_tokens} out`, FACTS.tokens]);
    if (stats.candidates !== undefined) {
      facts.push(["Candidates", `${stats.candidates} = ${stats.accepted} accepted + ${stats.rolled_back} rolled back`, FACTS.candidates]);
      facts.push(["Windows", `${stats.windows}, ${stats.rollbacks} of them rolled back`, FACTS.windows]);
      facts.push(["Passes", `${stats.fast_passes} fast, ${stats.canonical_passes} canonical`, FACTS.passes]);
    }
    if (thoughts.length) {
      const written = thoughts.filter((one) => one.token_ids.length).length;
      facts.push(["Thoughts", `${written}, ${thoughts.length - written} trivial`, FACTS.thoughts]);
    }
    if (fingerprint) facts.push(["Fingerprint", fingerprint, FACTS.fingerprint]);
    describe(byId("facts"), facts.map(([term, value, tip]) => [term, String(value), tip]));
    byId("facts").hidden = false;
    this.receipt = holdfast?.receipt ?? null;
    byId("receipt").hidden = this.receipt === null;
  }

  #showError(error) {
    byId("problem").textContent = error instanceof ApiError ? error.message : "The server cannot be reached.";
    byId("problem").hidden = false;
  }

  #download() {
    const url = URL.createObjectURL(new Blob([JSON.stringify(this.receipt, null, 2)], { type: "application/json" }));
    make("a", { href: url, download: "holdfast-receipt.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}
