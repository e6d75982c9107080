// Requests to the server, as any OpenAI client would send them.

export class ApiError extends Error {}

// The path and the body of a completion request, chat or raw text. Without a seed the server chooses one.
export function requestFor({ mode, prompt, maxTokens, temperature, seed, deterministic, model, ...rest }) {
  const common = { model, temperature, deterministic, ...(seed === null ? {} : { seed }), ...rest };
  return mode === "chat"
    ? ["v1/chat/completions", { ...common, messages: [{ role: "user", content: prompt }], max_completion_tokens: maxTokens }]
    : ["v1/completions", { ...common, prompt, max_tokens: maxTokens }];
}

// A seed has up to 64 bits, more than a JavaScript number. It is kept as text and written into the JSON unquoted.
const toJson = ({ seed, ...body }) => (seed === undefined ? JSON.stringify(body) : `{"seed":${seed},${JSON.stringify(body).slice(1)}`);
export const parseJson = (text) => JSON.parse(text, (key, value, context) => (key === "seed" && typeof value === "number" && context ? context.source : value));

export async function post(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: toJson(body),
    signal,
  });
  if (!response.ok) throw new ApiError(await errorMessage(response));
  return response;
}

// The chunks of a streamed response.
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
        const chunk = parseJson(data);
        if (chunk.error) throw new ApiError(chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // not awaited: the server may be gone
  }
}

// The text of a choice: of a chunk or a whole response, of chat or of raw completions.
// Thinking comes before the answer.
export function choiceText(choice) {
  const part = choice?.delta ?? choice?.message;
  return (part?.reasoning_content ?? "") + (part?.content ?? choice?.text ?? "");
}

// The logprobs of a choice, exactly as the server sent them.
export function choiceLogprobs(choice) {
  const { logprobs } = choice ?? {};
  return JSON.stringify(logprobs?.content?.map((one) => one.logprob) ?? logprobs?.token_logprobs ?? null);
}

async function errorMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server responded ${response.status} ${response.statusText}`;
  }
}
