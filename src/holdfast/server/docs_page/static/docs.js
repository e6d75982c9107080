// Shows the OpenAPI document: every route with its fields, responses and a form to try it.

import { byId, make, plural } from "./dom.js";
import { Schemas } from "./schema.js";
import { startTheme } from "./theme.js";
import { tryIt } from "./try.js";

startTheme(byId("theme"), () => {});

async function start() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: ${response.status} ${response.statusText}`);
  const document_ = await response.json();
  byId("about").textContent = `${document_.info.version} · ${document_.info.summary ?? ""}`;
  const schemas = new Schemas(document_);
  const shown = show(document_, schemas);
  byId("status").textContent = plural(shown.length, "route");
  byId("filter").addEventListener("input", ({ target }) => filter(shown, target.value));
  if (location.hash) document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
}

function show(document_, schemas) {
  const shown = [];
  for (const tag of document_.tags ?? []) {
    const group = make("section", { className: "group" }, make("h2", { textContent: tag.name }), make("p", { textContent: tag.description ?? "" }));
    for (const [path, methods] of Object.entries(document_.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if (!(operation.tags ?? []).includes(tag.name)) continue;
        const element = showOperation(method.toUpperCase(), path, operation, schemas, needsKey(document_, operation));
        group.append(element);
        shown.push({ element, group, text: searchText(path, operation, schemas) });
      }
    }
    byId("operations").append(group);
  }
  return shown;
}

const needsKey = (document_, operation) => (operation.security ?? document_.security ?? []).length > 0;
const bodySchema = (operation) => operation.requestBody?.content?.["application/json"]?.schema;

function searchText(path, operation, schemas) {
  const body = bodySchema(operation);
  const fields = body === undefined ? [] : schemas.fields(body).flatMap(({ name, field }) => [name, field.description ?? ""]);
  return [path, operation.description ?? "", ...fields].join(" ").toLowerCase();
}

function filter(shown, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of shown) one.element.hidden = !words.every((word) => one.text.includes(word));
  for (const { group } of shown) group.hidden = [...group.querySelectorAll(".operation")].every((one) => one.hidden);
  byId("status").textContent = plural(shown.filter((one) => !one.element.hidden).length, "route");
}

function showOperation(method, path, operation, schemas, withKey) {
  const content = make("div", { className: "body" });
  const element = make("details", { className: "operation", id: operation.operationId },
    make("summary", {},
      make("span", { className: `method ${method.toLowerCase()}`, textContent: method }),
      make("span", { className: "path", textContent: path }),
      make("span", { className: "summary", textContent: operation.description ?? operation.summary ?? "" }),
      ...(withKey ? [make("span", { className: "badge", textContent: "needs a key" })] : [])),
    content);
  element.addEventListener("toggle", () => { // made when it is first opened
    if (element.open && !content.hasChildNodes()) content.append(...sections(method, path, operation, schemas));
  });
  return element;
}

function sections(method, path, operation, schemas) {
  const body = bodySchema(operation);
  const parts = [];
  if (body !== undefined) parts.push(section("Body", fieldTable(body, schemas)));
  parts.push(section("Responses", ...Object.entries(operation.responses).map(([status, one]) => showResponse(status, one, schemas))));
  parts.push(section("Try it", ...tryIt(method, path, body === undefined ? undefined : schemas.example(body))));
  return parts;
}

const section = (title, ...children) => make("div", {}, make("h3", { textContent: title }), ...children);

function showResponse(status, response, schemas) {
  const kinds = Object.keys(response.content ?? {}).filter((kind) => kind !== "application/json");
  const schema = response.content?.["application/json"]?.schema;
  const title = `${status}  ${response.description} ${kinds.join(", ")}`;
  if (schema === undefined) return make("p", { className: "note", textContent: title });
  return expandable(title, () => fieldTable(schema, schemas));
}

function fieldTable(schema, schemas) {
  const rows = schemas.fields(schema).map(({ name, field, required }) => make("tr", {},
    make("td", {}, name, ...(required ? [make("span", { className: "required", title: "required", textContent: " *" })] : [])),
    make("td", { textContent: schemas.type(field) }),
    make("td", {}, schemas.notes(field), ...[...schemas.inner(field)].map((model) =>
      expandable(model, () => fieldTable({ $ref: `#/components/schemas/${model}` }, schemas))))));
  if (rows.length === 0) return make("p", { className: "note", textContent: schemas.type(schema) });
  const head = make("tr", {}, ...["field", "type", "meaning"].map((textContent) => make("th", { textContent, scope: "col" })));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

// The content is made when it is first opened, because models may contain themselves.
function expandable(title, content) {
  const element = make("details", { className: "model" }, make("summary", { textContent: title }));
  element.addEventListener("toggle", () => { if (element.open && element.childElementCount === 1) element.append(content()); });
  return element;
}

start().catch((error) => { byId("status").textContent = `The document cannot be shown: ${error.message}`; });
