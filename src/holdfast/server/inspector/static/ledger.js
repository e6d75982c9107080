// What the page knows of the requests: kept from snapshots and steps, read by everything that draws.

const KEPT = 240; // tokens of a request, the last ones

// A request as it stands, with the tokens told before and those told now.
function merge(before, request) {
  const keep = request.from - before.from;
  if (keep < 0 || keep > before.tokens.length) return request;
  const tokens = before.tokens.slice(0, keep).concat(request.tokens).slice(-KEPT);
  return { ...request, tokens, from: request.committed - tokens.length, rolled: undefined };
}

export class Ledger {
  constructor() {
    this.requests = new Map();
    this.totals = { step: 0, running: 0, waiting: 0, pages: 0, all_pages: 0, page_size: 0 };
    this.counts = { candidates: 0, accepted: 0, rolled: 0, tokens: 0 };
  }

  // Everything anew. Counts go on: they are of what this page has seen.
  takeSnapshot(snapshot) {
    this.totals = snapshot;
    this.requests = new Map(snapshot.requests.map((request) => [request.id, request]));
  }

  // Returns [request, its former state or undefined] of all that changed.
  takeStep(step) {
    this.totals = step;
    const changed = step.requests.map((request) => {
      const before = this.requests.get(request.id);
      this.#count(request, before);
      this.requests.set(request.id, before === undefined ? request : merge(before, request));
      return [request, before];
    });
    return changed;
  }

  forget(ended) {
    for (const [id] of ended) this.requests.delete(id);
  }

  #count(request, before) {
    const committed = before?.committed ?? request.prompt;
    const rolled = request.rolled?.length ?? 0;
    this.counts.tokens += Math.max(0, request.committed - Math.max(committed, request.prompt));
    this.counts.accepted += request.accepted;
    this.counts.rolled += rolled;
    // A candidate was accepted, was rolled back, or is still there.
    const outstanding = request.candidates.length - (before?.candidates.length ?? 0);
    this.counts.candidates += request.accepted + rolled + outstanding;
  }
}
