// The replicas of a server with several engines, or its models if there are several: one link each; the page follows
// one of them.

import { byId, make } from "./dom.js";

const REFRESH_MS = 3000;

const named = (kind) => new URLSearchParams(location.search).get(kind) ?? "";
export const followed = () => named("replica");
export const followedModel = () => named("model");

function linksOf({ replicas = [], models = {} }) {
  const ofReplicas = replicas.map((one) => ({
    kind: "replica",
    id: one.id,
    text: `${one.id} · ${one.state} · ${one.requests}${one.deterministic ? "" : " · ordinary only"}`,
    title: `Node ${one.node}, fingerprint ${one.fingerprint}, ${one.requests} requests of this frontend`,
  }));
  const ofModels = Object.entries(models).map(([id, one]) => ({
    kind: "model", id, text: `${id} · ${one.status}`, title: `Follow the model ${id}`,
  }));
  return [...ofReplicas, ...ofModels];
}

// Shows the links, and again every few seconds. A server with one engine has none, and is asked once.
export async function showReplicas() {
  let links = [];
  try {
    links = linksOf(await (await fetch("health")).json());
  } catch { /* the server restarts; the next time tells */ }
  const list = byId("replicas");
  list.hidden = links.length === 0;
  const current = links.find((one) => one.id === named(one.kind)) ?? links[0];
  list.replaceChildren(...links.map((one) => {
    const link = make("a", {
      href: `?${one.kind}=${encodeURIComponent(one.id)}`,
      textContent: one.text,
      title: one.title,
    });
    if (one === current) link.setAttribute("aria-current", "true");
    return make("li", {}, link);
  }));
  if (links.length > 0) setTimeout(showReplicas, REFRESH_MS);
}
