// The engine's state as this page knows it: updated by snapshots and steps, read by everything that draws.

const KEPT = 240; // last tokens of a request

// A request's new state: its known tokens, followed by those of this step.
function merge(before, request) {
  const keep = request.from - before.from;
  if (keep < 0 || keep > before.tokens.length) return request;
  const tokens = before.tokens.slice(0, keep).concat(request.tokens).slice(-KEPT);
  return { ...request, tokens, from: request.committed - tokens.length, rolled_back: undefined };
}

export class EngineState {
  constructor() {
    this.requests = new Map();
    this.engine = { step: 0, running: 0, waiting: 0, pages_used: 0, num_pages: 0, page_size: 0 };
    this.counts = { candidates: 0, accepted: 0, rolledBack: 0, tokens: 0 };
  }

  // Replaces all requests. The counts continue: they cover all that this page has seen.
  applySnapshot(snapshot) {
    this.engine = snapshot;
    this.requests = new Map(snapshot.requests.map((request) => [request.id, request]));
  }

  // Returns [request, its previous state or undefined] for each request that changed.
  applyStep(step) {
    this.engine = step;
    const changed = step.requests.map((request) => {
      const before = this.requests.get(request.id);
      this.#count(request, before);
      this.requests.set(request.id, before === undefined ? request : merge(before, request));
      return [request, before];
    });
    return changed;
  }

  remove(ended) {
    for (const [id] of ended) this.requests.delete(id);
  }

  #count(request, before) {
    const committed = before?.committed ?? request.prompt;
    const rolledBack = request.rolled_back?.length ?? 0;
    this.counts.tokens += Math.max(0, request.committed - Math.max(committed, request.prompt));
    this.counts.accepted += request.accepted;
    this.counts.rolledBack += rolledBack;
    // A candidate was accepted, was rolled back, or is still outstanding.
    const outstanding = request.candidates.length - (before?.candidates.length ?? 0);
    this.counts.candidates += request.accepted + rolledBack + outstanding;
  }
}
