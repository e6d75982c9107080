// Random background requests, so that the compared requests never run in the same batch twice. Several prompts go into one
// request, because a browser opens only a few connections.

import { post } from "./client.js";

const BEGINNINGS = [
  "Name three rivers of", "Write one line about", "Explain to a child", "List the colours of", "Tell a short story about",
  "What would happen without", "Give two reasons for", "Compare the morning with",
];
const SUBJECTS = [
  "the sea", "an old bridge", "Portugal", "a clock that stops", "salt", "the moon and the tide", "a quiet street", "kelp",
  "a lighthouse keeper", "winter rain", "a knot that holds", "the number seven",
];
const PAUSE_MS = 150;

const any = (list) => list[Math.floor(Math.random() * list.length)];
const between = (low, high) => low + Math.floor(Math.random() * (high - low + 1));

export function randomPrompt() {
  const filler = "The tide went out and left the rocks bare. ".repeat(between(0, 2));
  return `${filler}${any(BEGINNINGS)} ${any(SUBJECTS)}.`;
}

// Runs until the signal aborts. Errors are ignored.
export async function makeLoad(model, signal) {
  while (!signal.aborted) {
    const prompt = Array.from({ length: between(2, 4) }, randomPrompt);
    const body = { model, prompt, max_tokens: between(4, 24), temperature: any([0, 0.7, 1]), deterministic: Math.random() < 0.3 };
    try {
      await (await post("v1/completions", body, signal)).json();
    } catch {
      if (!signal.aborted) await pause(10 * PAUSE_MS);
    }
    await pause(Math.random() * PAUSE_MS);
  }
}

export const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
