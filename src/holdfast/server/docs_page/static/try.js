// Sends a request from the page and shows the response as it arrives.

import { make } from "./dom.js";

const MAX_SHOWN = 200000; // characters of a response

export function tryIt(method, path, example) {
  const parameters = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
  const inputs = parameters.map((name) => make("input", { type: "text", required: true, name, autocomplete: "off" }));
  const body = example === undefined ? null : make("textarea", { rows: 8, spellcheck: false, value: JSON.stringify(example, null, 2) });
  const send = make("button", { type: "submit", className: "main", textContent: "Send" });
  const stop = make("button", { type: "button", textContent: "Stop", disabled: true });
  const note = make("p", { className: "note", role: "status" });
  const output = make("pre", { hidden: true, tabIndex: 0 });
  const curl = make("pre", { tabIndex: 0 });
  const form = make("form", { className: "try" },
    ...inputs.map((input) => make("label", { className: "field" }, input.name, input)),
    ...(body === null ? [] : [make("label", { className: "field" }, "Body", body)]),
    make("div", { className: "actions" }, send, stop), note, output);
  const target = () => inputs.reduce((url, input) => url.replace(`{${input.name}}`, encodeURIComponent(input.value)), path.slice(1));
  const showCurl = () => { curl.textContent = curlCommand(method, target(), body?.value); };
  form.addEventListener("input", showCurl);
  showCurl();
  let abort = null;
  stop.addEventListener("click", () => abort?.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    abort = new AbortController();
    send.disabled = !(stop.disabled = false);
    output.hidden = false;
    output.textContent = note.textContent = "";
    try {
      await exchange(method, target(), body?.value, abort.signal, note, output);
    } catch (error) {
      note.textContent = error.name === "AbortError" ? "Stopped." : `The request failed: ${error.message}`;
    }
    send.disabled = !(stop.disabled = true);
  });
  return [form, make("details", { className: "model" }, make("summary", { textContent: "curl" }), curl)];
}

async function exchange(method, path, body, signal, note, output) {
  const started = performance.now();
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(path, { method, headers, body, signal });
  const told = () => `${response.status} ${response.statusText} after ${Math.round(performance.now() - started)} ms`;
  note.textContent = told();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    text += read.value;
    output.textContent = text.slice(0, MAX_SHOWN);
  }
  note.textContent = text.length > MAX_SHOWN ? `${told()}; the first ${MAX_SHOWN} of ${text.length} characters` : told();
  if ((response.headers.get("content-type") ?? "").startsWith("application/json")) output.textContent = indent(text).slice(0, MAX_SHOWN);
}

// Numbers are not parsed and written again: a seed may have more digits than a JavaScript number.
export function indent(json) {
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|[{}[\],:]|\s+/g, (part) => {
    if (part === "{" || part === "[") { depth += 1; return part + newLine(); }
    if (part === "}" || part === "]") { depth -= 1; return newLine() + part; }
    if (part === ",") return part + newLine();
    if (part === ":") return ": ";
    return part.startsWith("\"") ? part : "";
  });
}

function curlCommand(method, path, body) {
  const url = new URL(path, location.href).href;
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [`curl ${method === "GET" ? "" : `-X ${method} `}${quote(url)}`];
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quote(body)}`);
  return parts.join(" \\\n  ");
}
