"""One request while it lives: its tokens, its pages, how far they are computed. The only request state that changes.

    canonical_len   KV of positions 0 .. canonical_len - 1 is canonical
    computed_len    KV of positions 0 .. computed_len - 1 is there, canonical or fast

For a deterministic sequence behind its prefill canonical_len == committed_len - 1: the last committed token has no
canonical KV yet, it is the first row of the next window.
"""

from collections.abc import Sequence as Ordered

from holdfast.core.phase import LIVE, Phase, advance
from holdfast.core.plan import Sampled, Sampling, Span
from holdfast.core.request import AnswerText, Request
from holdfast.core.result import Determinism, Stats
from holdfast.core.stop import FinishReason, finish_reason, looks_final
from holdfast.core.tokens import TokenLog
from holdfast.core.verdict import judge
from holdfast.kv.pool import PagePool
from holdfast.kv.prefix import Node, PrefixIndex
from holdfast.kv.table import PageTable

FIRST_WINDOW = 1  # candidates in a request's first window: its client is waiting


class Sequence:
    """A live request. Changed by the scheduler alone."""

    def __init__(
        self, request: Request, text: AnswerText, pool: PagePool, index: PrefixIndex, max_window: int
    ) -> None:
        self.request = request
        self.log = TokenLog(request.prompt_ids)
        self.table = PageTable(pool)
        self.phase = Phase.QUEUED
        self.stats = Stats()
        self.canonical_len = 0
        self.computed_len = 0
        self.max_window = max_window
        self.window_cap = FIRST_WINDOW
        self.last_judged = 0  # the step of the last window, so that windows take turns
        self.finish_reason: FinishReason | None = None
        self.certified_only = True  # no canonical pass of this sequence was uncertified so far
        self._text = text
        self._index = index
        self._indexed_node: Node = index.root
        self._num_indexed = 0
        self._page_size = pool.page_size
        params = request.params
        forbidden = params.stop_ids + (() if params.ignore_eos else tuple(sorted(request.eos_ids)))
        self.sampling = Sampling(
            params, request.seed, request.prompt_len, forbidden if params.min_tokens else ()
        )

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def deterministic(self) -> bool:
        return self.request.params.deterministic

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE

    @property
    def needs_prefill(self) -> bool:
        """More than the last token is still without the KV this sequence's answers stand on."""
        base = self.canonical_len if self.deterministic else self.computed_len
        return base < self.log.committed_len - 1

    @property
    def candidate_due(self) -> bool:
        """The candidates want a verdict now: enough of them, or the last one looks like an end."""
        log = self.log
        if log.num_candidates == 0:
            return False
        last = log.ids(log.total_len - 1, log.total_len)[0]
        num_output = log.total_len - log.prompt_len
        final = looks_final(last, num_output, self.request.params, self.request.eos_ids)
        return final or log.num_candidates >= self.window_cap

    @property
    def determinism(self) -> Determinism:
        if not self.deterministic:
            return "none"
        return "certified" if self.certified_only else "verified"

    def move(self, phase: Phase) -> None:
        self.phase = advance(self.phase, phase)

    # Rows of the next pass

    def decode_span(self) -> Span:
        """One fast row behind everything known, candidates included."""
        log = self.log
        assert self.computed_len == log.total_len - 1
        want = None if self.deterministic else self.request.params.logprobs
        return self._span(self.computed_len, log.total_len, want)

    def canonical_span(self, max_rows: int) -> Span:
        """Rows from canonical_len on: prefill, recomputation or a window, all the same thing."""
        stop = min(self.log.total_len, self.canonical_len + max_rows)
        return self._span(self.canonical_len, stop, self.request.params.logprobs)

    def ordinary_span(self, max_rows: int) -> Span:
        """Rows an ordinary sequence still has to compute."""
        stop = min(self.log.total_len, self.computed_len + max_rows)
        return self._span(self.computed_len, stop, self.request.params.logprobs)

    def _span(self, start: int, stop: int, logprobs: int | None) -> Span:
        sample_from = max(0, min(stop, self.log.committed_len - 1) - start)
        return Span(
            self.request_id,
            start,
            self.log.ids(start, stop),
            self.table.pages,
            sample_from,
            self.sampling,
            logprobs,
        )

    # What a pass said

    def absorb_fast(self, span: Span, samples: Ordered[Sampled]) -> tuple[Sampled, ...]:
        """A fast pass computed the span. Returns what is committed by it: nothing, for a deterministic sequence."""
        self.computed_len = span.stop
        self.stats.fast_passes += 1
        if not samples:
            return ()
        self.stats.candidates += 1
        if self.deterministic:
            self.log.propose(samples[0].token_id)
            return ()
        return self._commit(samples[:1], accepted=1)

    def absorb_canonical(self, span: Span, samples: Ordered[Sampled], certified: bool) -> tuple[Sampled, ...]:
        """A canonical pass computed the span. Returns what is committed by it."""
        self.stats.canonical_passes += 1
        if span.start <= self.canonical_len:
            self.canonical_len = max(self.canonical_len, span.stop)
        self.computed_len = max(self.computed_len, span.stop)
        self.certified_only &= certified
        if not samples:
            return ()
        candidates = self.log.candidates
        verdict = judge(candidates, [sample.token_id for sample in samples])
        if candidates:
            self.stats.windows += 1
            self._adapt_window(verdict.accepted, verdict.dropped)
        self.log.drop_candidates()
        committed = self._commit(samples[: verdict.num_committed], accepted=verdict.accepted)
        self.stats.rolled_back += len(candidates) - min(verdict.accepted, len(committed))
        self.stats.rollbacks += verdict.is_rollback
        self.roll_back()
        return committed

    def _commit(self, samples: Ordered[Sampled], accepted: int) -> tuple[Sampled, ...]:
        """Commit token by token until one of them ends the answer; what lies behind the end never was."""
        taken = 0
        for sample in samples:
            self.log.commit((sample.token_id,))
            taken += 1
            stopped = self._text.push(sample.token_id)
            reason = finish_reason(
                sample.token_id, self.log.num_output, stopped, self.request.params, self.request.eos_ids
            )
            if reason is not None:
                self.finish_reason = reason
                self.move(Phase.FINISHED)
                break
        self.stats.accepted += min(accepted, taken)
        self.stats.canonical_tokens += taken - min(accepted, taken)
        return tuple(samples[:taken])

    def _adapt_window(self, accepted: int, dropped: int) -> None:
        """Twice as long after a window that stood, about as long as it stood after one that fell."""
        longer = min(self.max_window, max(self.window_cap, 2 * accepted))
        self.window_cap = max(1, accepted) if dropped else longer

    def roll_back(self) -> None:
        """Truncate KV and pages to the last committed token, which is still to be computed."""
        last = self.log.committed_len - 1
        self.canonical_len = min(self.canonical_len, last)
        self.computed_len = min(self.computed_len, last)
        self.table.truncate(self.log.committed_len)

    # Pages

    def admit(self, cached_pages: list[int], node: Node, num_canonical: int) -> None:
        """Start, or start again, behind the pages found in the prefix index."""
        self.table.adopt(cached_pages)
        self.computed_len = len(cached_pages) * self._page_size
        self.canonical_len = num_canonical * self._page_size
        self._indexed_node, self._num_indexed = node, len(cached_pages)
        self.stats.cached_tokens += self.computed_len
        self.move(Phase.PREFILL)

    def preempt(self) -> None:
        """Give up every page and candidate; the committed tokens stay."""
        self.drop_candidates()
        self.release()
        self.canonical_len = self.computed_len = 0
        self.window_cap = FIRST_WINDOW
        self.stats.preemptions += 1
        self.move(Phase.QUEUED)

    def drop_candidates(self) -> None:
        """Candidates nobody will judge any more."""
        self.stats.rolled_back += self.log.drop_candidates()

    def release(self) -> None:
        self.table.release()
        self._indexed_node, self._num_indexed = self._index.root, 0

    def index_pages(self) -> None:
        """Make full pages known to the prefix index: canonical ones to everybody, fast ones to ordinary requests."""
        settled = self.canonical_len if self.deterministic else min(self.computed_len, self.log.committed_len)
        size = self._page_size
        while (self._num_indexed + 1) * size <= settled:
            start = self._num_indexed * size
            self._indexed_node = self._index.insert(
                self._indexed_node,
                self.log.ids(start, start + size),
                self.table[self._num_indexed],
                canonical=start + size <= self.canonical_len,
            )
            self._num_indexed += 1
