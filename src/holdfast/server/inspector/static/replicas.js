// The replicas of a server with several engines: one link each; the page follows one of them.

import { byId, make } from "./dom.js";

const REFRESH_MS = 3000;

export const followed = () => new URLSearchParams(location.search).get("replica") ?? "";

// Shows the replicas, and again every few seconds. A server with one engine has none, and is asked once.
export async function showReplicas() {
  let replicas = [];
  try {
    replicas = (await (await fetch("health")).json()).replicas ?? [];
  } catch { /* the server restarts; the next time tells */ }
  const list = byId("replicas");
  list.hidden = replicas.length === 0;
  const current = replicas.some((one) => one.id === followed()) ? followed() : replicas[0]?.id;
  list.replaceChildren(...replicas.map((one) => {
    const link = make("a", {
      href: `?replica=${encodeURIComponent(one.id)}`,
      textContent: `${one.id} · ${one.state} · ${one.requests}${one.deterministic ? "" : " · ordinary only"}`,
      title: `Node ${one.node}, fingerprint ${one.fingerprint}, ${one.requests} requests of this frontend`,
    });
    if (one.id === current) link.setAttribute("aria-current", "true");
    return make("li", {}, link);
  }));
  if (replicas.length > 0) setTimeout(showReplicas, REFRESH_MS);
}
