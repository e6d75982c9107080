// Questions to the server, as any OpenAI client would send them.

export class Refused extends Error {}

// The path and the body of a question. Chat or raw text; no seed asks the server to choose one.
export function question({ mode, prompt, maxTokens, temperature, seed, deterministic, model, ...rest }) {
  const common = { model, temperature, deterministic, ...(seed === null ? {} : { seed }), ...rest };
  return mode === "chat"
    ? ["v1/chat/completions", { ...common, messages: [{ role: "user", content: prompt }], max_completion_tokens: maxTokens }]
    : ["v1/completions", { ...common, prompt, max_tokens: maxTokens }];
}

// A seed has up to 64 bits, more than a number holds here. It is kept as text, and written and read as it stands.
const write = ({ seed, ...body }) => (seed === undefined ? JSON.stringify(body) : `{"seed":${seed},${JSON.stringify(body).slice(1)}`);
export const read = (text) => JSON.parse(text, (key, value, context) => (key === "seed" && typeof value === "number" && context ? context.source : value));

export async function post(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: write(body),
    signal,
  });
  if (!response.ok) throw new Refused(await reason(response));
  return response;
}

// The objects of a streamed answer, as they come.
export async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (data === "[DONE]") return;
        if (data === "") continue;
        const chunk = read(data);
        if (chunk.error) throw new Refused(chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // not waited for: there may be nobody left to end it
  }
}

// A choice's text, wherever it stands: whole or a piece, chat or not.
export const textOf = (choice) => choice?.delta?.content ?? choice?.message?.content ?? choice?.text ?? "";

// A choice's logprobs, exactly as they were sent.
export function logprobsOf(choice) {
  const { logprobs } = choice ?? {};
  return JSON.stringify(logprobs?.content?.map((one) => one.logprob) ?? logprobs?.token_logprobs ?? null);
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status} ${response.statusText}`;
  }
}
