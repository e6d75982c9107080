"""One live request: its tokens, its pages, and how far its KV is computed. The only request state
that changes.

    position    0 ........... canonical_len ..... committed_len ..... total_len
    tokens      | prompt, answer                 | candidates        |
    KV          | canonical   | fast, rewritten by the window        |   computed_len <= total_len
                               ^ last committed token: first token of the next window

    canonical_len   KV of positions 0 .. canonical_len - 1 is canonical
    computed_len    KV of positions 0 .. computed_len - 1 exists, canonical or fast
    committed_len   tokens of the prompt, and of the answer as the client gets it
    total_len       committed tokens and candidates
    scored_len      tokens at positions score_from .. scored_len - 1 have logprobs, if asked for

After the prefill of a deterministic request canonical_len == committed_len - 1: the last committed
token has no canonical KV yet.

These lengths cover results that are read. Spans whose results are not read yet are in `in_flight`.
`commit.py` applies a result.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from functools import cached_property

from holdfast.core.pooling import HiddenStates, Pooling
from holdfast.core.request import AnswerText, Prepared, branch_seed
from holdfast.core.results import Determinism, Stats
from holdfast.core.sent import Sent
from holdfast.core.shares import prompt_cost, sampled_cost
from holdfast.core.step_plan import Sampled, Sampling, Span, TokenLogprob
from holdfast.core.stop_rules import FinishReason, finish_reason, looks_final
from holdfast.errors import AnswerFailed
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PageLogprobs, PrefixCache, PrefixCursor, PrefixMatch
from holdfast.scheduler.extension import RequestExtension
from holdfast.scheduler.ngram_proposer import NgramProposer
from holdfast.scheduler.state_cursor import StateCursor
from holdfast.scheduler.token_log import ConfirmLog, TokenLog

FIRST_WINDOW = 1  # candidates in a request's first window, so that its client gets a token soon


class Phase(Enum):
    """The phases of a request.

    QUEUED -> PREFILL -> DECODE <-> VERIFY -> FINISHED        from any live phase: ABORTED, FAILED
      ^_________|__________|__________|   preemption
    """

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


_ENDS = frozenset({Phase.ABORTED, Phase.FAILED})

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREFILL}) | _ENDS,
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.DECODE: frozenset({Phase.VERIFY, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.VERIFY: frozenset({Phase.DECODE, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.FINISHED: frozenset(),
    Phase.ABORTED: frozenset(),
    Phase.FAILED: frozenset(),
}

LIVE = frozenset(phase for phase, targets in TRANSITIONS.items() if targets)


class InFlightSpans:
    """The spans of one request that are planned and whose results are not read yet, oldest first. The
    next span starts after the last of them.

    A result is used only if it belongs to the oldest span. A request that ends, restarts or is rolled
    back clears the list, and the results of those spans are discarded.
    """

    __slots__ = ("num_new_tokens", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # Tokens that the spans will add to the request: one for each span that samples. The other
        # tokens of a window replace its candidates, which are counted already.
        self.num_new_tokens = 0

    def add(self, span: Span) -> None:
        self.spans.append(span)
        if span.sample_from < len(span.token_ids):
            self.num_new_tokens += 1

    def pop(self, span: Span) -> bool:
        """Remove the span if it is the oldest. Return False if its result must be discarded."""
        spans = self.spans
        if not spans or spans[0] is not span:
            return False
        del spans[0]
        if span.sample_from < len(span.token_ids):
            self.num_new_tokens -= 1
        return True

    def clear(self) -> None:
        self.spans.clear()
        self.num_new_tokens = 0


class PooledPrompt:
    """The running sum of the hidden states of a request that asks for an embedding.

    Those of positions up to pooled_len - 1 are in the sum, once: a position that is computed again after
    a preemption is not added again, and positions from pooled_len on never come from the prefix cache. A
    restart begins a new sum. `embedding` is set once the whole prompt is pooled.
    """

    def __init__(self, pooling: Pooling, prompt_len: int) -> None:
        self._pooling = pooling
        self._prompt_len = prompt_len
        self._first = pooling.first_position(prompt_len)
        self.restart()

    def restart(self) -> None:
        self.pooled_len = self._first
        self.embedding: bytes | None = None
        self._total: array[float] | None = None

    @property
    def is_complete(self) -> bool:
        return self.pooled_len == self._prompt_len

    def num_pooled(self, start: int, stop: int, in_flight: Iterable[Span]) -> int:
        """Return how many of the last tokens of positions start .. stop - 1 are still to be pooled."""
        pooled_len = self.pooled_len + sum(span.num_pooled for span in in_flight)
        return max(0, stop - max(start, pooled_len))

    def add(self, states: HiddenStates, num_states: int) -> None:
        self._total = states.add_to(self._total, num_states)
        self.pooled_len += num_states
        if self.is_complete:
            self.embedding = states.finish(self._total, self._prompt_len - self._first, self._pooling)


class RequestState:
    """A live request. Only the scheduler changes it."""

    def __init__(
        self,
        prepared: Prepared,
        index: int,
        text: AnswerText,
        pool: PagePool,
        prefix_cache: PrefixCache,
        *,
        max_window: int,
        speculates: bool = False,
        extension: RequestExtension | None = None,
        state_interval: int = 0,
    ) -> None:
        """state_interval: of recurrent states that are kept; 0: none are."""
        request, eos_ids = prepared.request, prepared.eos_ids
        params = request.params
        self.request = request
        self.request_id = request.request_id + index
        self.holder = request.share.holder
        self.is_background = request.share.is_background
        self.deterministic = request.deterministic
        self.max_tokens = params.max_tokens
        # No answer: the client asks only for the prompt's logprobs or its embedding.
        self.only_scored = params.max_tokens == 0
        self.pooled = None if request.pooling is None else PooledPrompt(request.pooling, request.prompt_len)
        # Every canonical token gets its logprob, because the receipt holds its bits.
        self.logprobs = 0 if request.deterministic and params.logprobs is None else params.logprobs
        self.tokens = TokenLog(request.prompt_ids)
        self.score_from = None if index else request.score_from
        self.scores: list[TokenLogprob] = []  # of the prompt's tokens from score_from on
        self.cached_scores: tuple[TokenLogprob, ...] = ()  # the next ones: the first result brings them
        self.has_fast_scores = False  # some are not canonical, so they are kept with no canonical page
        self.page_table = PageTable(pool)
        self.prefix_cursor = PrefixCursor(
            prefix_cache,
            pool.page_size,
            request.cache_salt,
            canonical_only=request.deterministic,
            holder=self.holder,
            number=self.request_id,
            score_from=self.score_from if extension is None and prefix_cache.states is None else None,
            num_top=params.prompt_logprobs or 0,
        )
        self.states: StateCursor | None = None  # in a model with recurrent layers
        if prefix_cache.states is not None:
            edge = (request.prompt_len - 1) // pool.page_size * pool.page_size
            wanted = self.prefix_cursor.wanted_states
            self.states = StateCursor(prefix_cache.states, state_interval, edge, wanted)
        self.awaited: PrefixMatch | None = None  # while it waits for pages that another one computes
        self.request_index = -1  # row in the device's table of sampled tokens, while the request runs
        self.in_flight = InFlightSpans()
        self.phase = Phase.QUEUED
        self.stats = Stats()
        self.canonical_len = 0
        self.computed_len = 0
        self.max_window = max_window
        self.window_cap = FIRST_WINDOW
        self.last_verified = 0  # the step of the last window, so that windows take turns
        self.last_planned = 0  # the step of its last token, so that a holder's requests take turns
        self.admitted_at = 0  # the step
        self.admitted_len = 0  # its committed tokens then
        self.protected_until = 0  # the step until which it is not preempted for other holders
        self.short_since: int | None = None  # the step when pages that other holders hold were first missing
        self.has_draft = False  # the candidates were proposed without a pass: n-grams, or tokens sent before
        self.finish_reason: FinishReason | None = None
        self.failure: AnswerFailed | None = None
        self.is_lost = False  # the guarantee: what was sent did not come out again
        self.certified_only = True  # no canonical pass of this request was uncertified so far
        self.grammar = prepared.grammars[index] if prepared.grammars else None
        self._restart_grammar = False  # at admission: a pass in flight may still use the grammar
        self.proposer = NgramProposer(request.prompt_ids) if speculates else None
        self.extension = extension
        self.sent = ConfirmLog(request.deterministic)
        self.text = text
        self._pool = pool
        self._page_size = pool.page_size
        self._eos_ids = eos_ids
        stop_ids = params.stop_ids + (() if params.ignore_eos else tuple(sorted(eos_ids)))
        self.stop_ids = frozenset(stop_ids)
        self.sampling = Sampling(
            params,
            branch_seed(request.seed, index),
            request.prompt_len,
            suppressed_ids=stop_ids if params.min_tokens else (),
            bad_words=prepared.bad_words,
            eos_ids=tuple(sorted(eos_ids)),
        )
        # The host must know the tokens before the next one: it is not planned while a token is in
        # flight. Other requests do not wait for it.
        self.is_synchronous = self.grammar is not None
        self.confirmed: list[Sampled] = []  # tokens of another engine, confirmed since the last step
        if request.sent:
            self._restore(request.sent[index])

    def _restore(self, sent: Sent) -> None:
        """Continue an answer of another engine. A deterministic request confirms what was sent, an ordinary
        one goes on after it."""
        if self.extension is not None:
            self.extension.restore(sent)
        if self.deterministic:
            self.sent.restore(sent)
            return
        for token_id in sent.token_ids:
            self.add_token(token_id)
        self.stats.candidates += len(sent.token_ids)
        self.stats.accepted += len(sent.token_ids)

    # Lengths

    @cached_property
    def sampled_cost(self) -> int:
        """What one of its sampled tokens counts as in its holder's share."""
        return sampled_cost(self.request.params)

    @cached_property
    def prompt_cost(self) -> int:
        """What one of its prompt's tokens counts as."""
        is_scored = self.score_from is not None
        num_logprobs = self.request.params.prompt_logprobs or 0 if is_scored else None
        return prompt_cost(num_logprobs=num_logprobs, is_pooled=self.pooled is not None)

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE

    @property
    def has_progressed(self) -> bool:
        """Return whether it has committed a token since it was admitted last."""
        return self.tokens.committed_len > self.admitted_len

    @property
    def scored_len(self) -> int:
        return (self.score_from or 0) + len(self.scores)

    @property
    def is_scored(self) -> bool:
        """Return whether no logprob of the prompt is missing."""
        return self.score_from is None or self.known_scores_len == self.tokens.prompt_len

    @property
    def known_scores_len(self) -> int:
        """Like scored_len, with those that come with cached pages."""
        return self.scored_len + len(self.cached_scores)

    @property
    def valid_len(self) -> int:
        """Positions whose KV this request's answer may depend on."""
        return self.canonical_len if self.deterministic else self.computed_len

    @property
    def prefill_len(self) -> int:
        """Positions that need KV before a token is sampled; of a prompt that is only scored or pooled, all."""
        if self.pooled is not None:
            return self.tokens.prompt_len
        return max(1, self.tokens.prompt_len - 1) if self.only_scored else self.tokens.committed_len - 1

    @property
    def needs_prefill(self) -> bool:
        return self.valid_len < self.prefill_len

    @property
    def expected_len(self) -> int:
        """The number of tokens once everything in flight is read, if the answer does not end before."""
        return self.tokens.total_len + self.in_flight.num_new_tokens

    @property
    def next_start(self) -> int:
        """Where the next span starts: after what is in flight, or else after the valid KV. The last token of
        cached pages is computed again if the logprob of the token after it is needed."""
        spans = self.in_flight.spans
        if spans:
            return spans[-1].stop
        if self.is_scored:
            return self.valid_len
        return min(self.valid_len, self.known_scores_len - 1)

    @property
    def tokens_left(self) -> int:
        """How many tokens the answer may still have after those in flight."""
        return self.max_tokens - self.tokens.num_output - self.in_flight.num_new_tokens

    @property
    def cacheable_len(self) -> int:
        """Positions that may come from the prefix cache: none whose logits or hidden state is needed."""
        length = self.tokens.committed_len - 1
        if self.pooled is not None:
            length = min(length, self.pooled.pooled_len)
        if self.extension is not None:
            length = self.extension.shareable_len(length, self.tokens.ids)
        if not self._shares_scores and self.score_from is not None:
            return min(length, self.scored_len - 1)
        return length if self.is_scored else min(length, self.tokens.prompt_len - 1)

    @property
    def _shares_scores(self) -> bool:
        """Return whether logprobs of the prompt come with cached pages. The last token of these is computed
        again, for which there is no state, and no thoughts."""
        return self.extension is None and self.states is None

    # What can be planned

    @property
    def is_prefilling(self) -> bool:
        """Return whether the next token is known already: one of the prompt or, after a preemption, one that is
        computed again."""
        return self.phase is Phase.PREFILL and not self.in_flight.num_new_tokens

    @property
    def needs_known_tokens(self) -> bool:
        """Return whether its spans need the ids of the tokens before: for a grammar; for penalties and bad words
        if the device does not read the ids beside the KV."""
        return self.is_synchronous or (self.request_index < 0 and self.sampling.needs_history)

    @property
    def is_unverified(self) -> bool:
        """Return whether candidates of a deterministic request, or a window, are in flight."""
        last = self.in_flight.spans[-1]
        return self.deterministic and (last.num_sampled > 1 or last.logprobs is None)  # None: not canonical

    @property
    def is_blocked(self) -> bool:
        """Return whether nothing can be planned after what is in flight: a window over known candidates, the
        answer's end, or a token that the grammar must see first.

        A window over candidates that are in flight themselves does not block: `Batcher.must_wait`
        decides there.
        """
        tokens, in_flight = self.tokens, self.in_flight
        last = in_flight.spans[-1]
        if tokens.num_candidates and len(last.token_ids) - last.sample_from > 1:
            return True
        if self.only_scored:
            return last.stop >= self.prefill_len
        if self.is_synchronous and in_flight.num_new_tokens:
            return True
        return tokens.committed_len - tokens.prompt_len + in_flight.num_new_tokens >= self.max_tokens

    @property
    def is_window_due(self) -> bool:
        """Return whether to verify the candidates now: there are enough, or the last one may end the answer."""
        tokens = self.tokens
        if tokens.num_candidates == 0:
            return False
        num_output = tokens.total_len - tokens.prompt_len
        final = looks_final(tokens.last, num_output, self.request.params, self._eos_ids)
        return final or self.has_draft or tokens.num_candidates >= self.window_cap

    @property
    def is_confirming(self) -> bool:
        """Return whether something that was sent must be confirmed."""
        return self.sent.has_unconfirmed(self.tokens.num_output)

    @property
    def determinism(self) -> Determinism:
        unconfirmed = self.is_confirming or (self.extension is not None and self.extension.has_unconfirmed)
        if not self.deterministic or self.failure is not None or unconfirmed:
            return "none"
        return "certified" if self.certified_only else "verified"

    def propose(self, max_candidates: int) -> None:
        """Draft candidates without a pass: tokens that must be confirmed, else repeated n-grams."""
        tokens, params = self.tokens, self.request.params
        assert tokens.num_candidates == 0
        max_candidates = min(max_candidates, params.max_tokens - tokens.num_output - 1)
        draft = self.sent.unconfirmed(tokens.num_output)[: max(0, max_candidates)]
        if not draft and self.proposer is not None:
            draft = self.proposer.propose(max_candidates)
        if self.grammar is not None and draft:
            draft = draft[: self.grammar.count_valid(draft)]
        for count, token_id in enumerate(draft, 1):
            tokens.propose(token_id)
            if looks_final(token_id, tokens.num_output + count, params, self._eos_ids):
                break
        self.has_draft = tokens.num_candidates > 0
        self.stats.candidates += tokens.num_candidates
        self.stats.looked_up += tokens.num_candidates

    def add_in_flight(self, span: Span) -> None:
        """Note that the span is planned."""
        self.in_flight.add(span)
        if self.states is not None and span.state is not None:
            self.states.advance(span.state)

    # What changes its tokens and its KV

    def finish_reason_after(
        self, token_id: int, num_output: int, *, text_stopped: bool
    ) -> FinishReason | None:
        """Return why the answer ends with this token, its num_output-th, or None."""
        return finish_reason(token_id, num_output, text_stopped, self.request.params, self._eos_ids)

    def add_token(self, token_id: int) -> None:
        """Commit a token to everything that follows the answer."""
        self.tokens.commit(token_id)
        if self.proposer is not None:
            self.proposer.commit(token_id)
        if self.grammar is not None:
            self.grammar.commit(token_id)

    def truncate_kv(self) -> None:
        """Roll back KV and pages to before the last committed token. Pages of spans in flight stay."""
        last = self.tokens.committed_len - 1
        if self.canonical_len > last:
            self.canonical_len = last
        if self.computed_len > last:
            self.computed_len = last
        spans = self.in_flight.spans
        length = spans[-1].stop if spans else last + 1
        if self.page_table.capacity >= length + self._page_size:
            self.page_table.truncate(length)

    def move(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise AssertionError(f"a request cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

    def admit(self, match: PrefixMatch) -> None:
        """Start, or restart, after the pages found in the prefix cache."""
        if self.extension is not None:
            self.extension.adopt([page.extra for page in match.cached])
        elif not self.is_scored and self._shares_scores:
            self.cached_scores = tuple(self._scores_of(match))
            if match.num_canonical < len(match.cached):
                self.has_fast_scores = True
        self.page_table.adopt(match.pages)
        self.computed_len = len(match.cached) * self._page_size
        self.canonical_len = match.num_canonical * self._page_size
        self.prefix_cursor.move_to(match.node, len(match.cached))
        if self.states is not None:
            self.states.start(match.state, self.computed_len)
            if match.known_len > self.computed_len:
                self.prefix_cursor.wanted_states.add(match.known_len)
        self.awaited = None
        self.stats.cached_tokens += self.computed_len
        if self._restart_grammar and self.grammar is not None:
            self.grammar.restart()
            self._restart_grammar = False
        self.move(Phase.PREFILL)

    def _scores_of(self, match: PrefixMatch) -> Iterator[TokenLogprob]:
        """Yield the logprobs that are kept with these pages, of the tokens that have none yet."""
        size, num_top = self._page_size, self.request.params.prompt_logprobs or 0
        start = self.scored_len
        for page in match.cached[start // size :]:
            stop = start // size * size + size
            assert page.logprobs is not None, "a page without the logprobs that the request asks for"
            yield from page.logprobs.read(self.tokens.ids(start, stop), num_top)
            start = stop

    def preempt(self) -> None:
        """Free every page and drop the candidates. The committed tokens stay."""
        assert not self.in_flight.spans
        self.drop_candidates()
        self.page_table.release()
        self.prefix_cursor.reset()
        self._reset_kv()
        self.window_cap = FIRST_WINDOW
        self.stats.preemptions += 1
        self.move(Phase.QUEUED)

    def restart(self) -> None:
        """Discard everything computed so far, back to the prompt. What was sent must be confirmed."""
        self.drop_candidates()
        self.give_up_pages()
        self.page_table = PageTable(self._pool)  # spans in flight may still write to the old pages
        self._reset_kv()
        self.scores.clear()
        self.has_fast_scores = False
        if self.pooled is not None:
            self.pooled.restart()
        self.sent.unconfirm()
        if self.extension is not None:
            self.extension.unconfirm()
        self.tokens.drop_output()
        self.window_cap = FIRST_WINDOW
        self.certified_only = False
        self.stats.rolled_back += self.stats.accepted
        self.stats.accepted = self.stats.canonical_tokens = 0
        self._restart_grammar = self.grammar is not None
        if self.proposer is not None:
            self.proposer = NgramProposer(self.request.prompt_ids)
        if self.phase is not Phase.QUEUED:
            self.move(Phase.QUEUED)

    def _reset_kv(self) -> None:
        self.canonical_len = self.computed_len = 0
        if self.states is not None:
            self.states.stop()
        self.cached_scores = ()
        if self.extension is not None:
            self.extension.restart()

    def drop_candidates(self) -> None:
        """Roll back candidates that no pass will verify."""
        self.stats.rolled_back += self.tokens.drop_candidates()
        self.has_draft = False

    def give_up_pages(self) -> None:
        """Free the pages for good, pinned ones when the last pin is removed."""
        self.in_flight.clear()
        if self.states is not None:
            self.states.stop()
        self.page_table.give_up()
        self.prefix_cursor.reset()

    def distrust_pages(self) -> None:
        """Share no page from now on. An ordinary request goes on with its own."""
        self.canonical_len = 0
        self.prefix_cursor.close()

    def announce_pages(self) -> None:
        """Let other requests know which full pages the prefill will add to the prefix cache."""
        length = self.prefill_len if self.only_scored else self.tokens.committed_len
        if self.extension is not None:
            length = self.extension.shareable_len(length, self.tokens.ids)
        self.prefix_cursor.announce(length, self.tokens.ids)

    def cache_pages(self) -> None:
        """Add full pages to the prefix cache: canonical ones for all requests, fast ones for ordinary ones."""
        length = min(self.valid_len, self.tokens.committed_len)
        extra = None
        if self.extension is not None:
            length = self.extension.shareable_len(length, self.tokens.ids)
            extra = self.extension.of_pages
        self.prefix_cursor.extend(
            length,
            canonical_len=self.canonical_len,
            page_table=self.page_table,
            tokens=self.tokens.ids,
            extra=extra,
            logprobs=self._page_logprobs if self.score_from is not None and self._shares_scores else None,
        )

    def cache_states(self, span: Span) -> None:
        """Keep the states that this span saved, and those before it, with their pages."""
        assert self.states is not None and span.state is not None
        self.states.finish(span.state)
        for length, slot in self.states.take_saved(self.prefix_cursor.cached_len).items():
            self.prefix_cursor.keep_state(length, slot, canonical=length <= self.canonical_len)

    def _page_logprobs(self, start: int, stop: int) -> PageLogprobs | None:
        """Return the logprobs of the page of these positions if all its tokens are scored."""
        assert self.score_from is not None
        start = max(1, start)
        if not self.score_from <= start < stop <= self.scored_len:
            return None
        if self.has_fast_scores and stop <= self.canonical_len:
            return None
        scores = self.scores[start - self.score_from : stop - self.score_from]
        return PageLogprobs.of(scores, self.request.params.prompt_logprobs or 0)

    def final_stats(self) -> Stats:
        """Return the counts of an answer that ended."""
        stats = replace(self.stats)
        if self.deterministic:
            stats.canonical_tokens = self.sent.num_sent - stats.accepted  # also those not confirmed again
        return stats
