"""A model made of hashes, for testing the protocol without tensors.

Every KV slot stores the hash of all tokens up to it and whether a canonical pass wrote it. A pass reads its context
through the page table, so a wrong page, a stale slot or a non-canonical read shows at once. The canonical next token is
a function of the context alone; a fast pass may be wrong, and so may certified passes from some time on. A prompt that
begins with COPIES is answered with text that repeats itself, so that n-grams match.

Sampled tokens are kept by request index, as in the real runner: an UNKNOWN_TOKEN is read from there, and must have
been written for this request and this position. `start` computes in order; results are
read in order, when they are waited for.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import (
    SAMPLED_RING_SIZE,
    UNKNOWN_TOKEN,
    Pass,
    PassKind,
    PassResult,
    Sampled,
    Span,
    StepPlan,
    TokenLogprob,
)
from holdfast.core.stop_rules import finish_reason

VOCAB = 50
EOS = 0
COPIES = 2

Context = tuple[int, int, bool]  # hash of all tokens, the last token, whether the text repeats itself
START: Context = (0, 0, False)


@lru_cache(1 << 16)  # references and passes read the same tokens again and again
def chain(previous: Context, token_id: int) -> Context:
    digest = hashlib.blake2b(f"{previous[0]}:{token_id}".encode(), digest_size=8).digest()
    copies = token_id == COPIES if previous == START else previous[2]
    return int.from_bytes(digest, "big"), token_id, copies


def context_of(token_ids: tuple[int, ...]) -> Context:
    context = START
    for token_id in token_ids:
        context = chain(context, token_id)
    return context


def next_token(context: Context) -> int:
    number, last, copies = context
    if copies and number % 13:
        return last % 5 + 1
    return number % VOCAB


def logprob(context: Context, token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -float((context[0] ^ token_id) % 1009))


def reference(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """The answer a canonical pass after the other gives."""
    context = context_of(prompt)
    output: list[int] = []
    while len(output) < params.max_tokens:
        token_id = next_token(context)
        output.append(token_id)
        if finish_reason(token_id, len(output), False, params, frozenset({EOS})):
            break
        context = chain(context, token_id)
    return tuple(output)


def reference_scores(prompt: tuple[int, ...], score_from: int) -> list[TokenLogprob]:
    return [logprob(context_of(prompt[:at]), prompt[at]) for at in range(score_from, len(prompt))]


@dataclass
class Slot:
    position: int
    context: Context
    canonical: bool


class ScriptedRunner:
    """Runs plans over hashes. `error_rate` is the chance that a fast token is wrong; from pass number `corrupt_from` on
    certified passes are wrong too. With a grammar a span must have the tokens before it; with penalties, too, unless
    the request has a ring of sampled tokens.
    """

    def __init__(
        self,
        page_size: int,
        error_rate: float,
        seed: int,
        during: Callable[[], None] | None = None,
        corrupt_from: int | None = None,
    ) -> None:
        self._page_size = page_size
        self._error_rate = error_rate
        self._rng = random.Random(seed)
        self._slots: dict[int, Slot] = {}
        self._during = during
        self._corrupt_from = corrupt_from
        self._lanes: dict[tuple[int, int], tuple[int, int, int]] = {}  # place -> request, position, token
        self._unread: deque[StepPlan] = deque()
        self.passes: list[Pass] = []
        self.num_mismatches = 0
        self.num_started = 0
        self.num_waits = 0
        self.num_ahead = 0  # plans started before the one before was read
        self.num_unknown = 0

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        """Everything is under way; the callable gives the results, in order, once."""
        assert plan.passes
        self.num_started += 1
        self.num_ahead += bool(self._unread)
        self._unread.append(plan)
        results = self.run(plan)

        def wait() -> list[PassResult]:
            assert self._unread.popleft() is plan, "plans are read in the order they were started"
            self.num_waits += 1
            return results

        return wait

    def forget_unread(self) -> None:
        """A plan raised: no result of those under way is read."""
        self._unread.clear()

    def run(self, plan: StepPlan) -> list[PassResult]:
        results = []
        for one in plan.passes:
            self.passes.append(one)
            assert one.num_tokens <= one.num_tokens_padded
            results.append(self._check(one) if one.kind is PassKind.CHECK else self._run_pass(one))
        if self._during is not None:
            self._during()
        return results

    def is_corrupt(self, one: Pass) -> bool:
        return self._corrupt_from is not None and one.certified and len(self.passes) > self._corrupt_from

    def _run_pass(self, one: Pass) -> PassResult:
        corrupt = self.is_corrupt(one)
        given = [self._run_span(span, one.kind, corrupt) for span in one.spans]
        scores = tuple(scores for _, scores in given)
        samples = tuple(samples for samples, _ in given)
        return PassResult(samples, scores if any(scores) else (), self._think(one, corrupt))

    def _think(self, one: Pass, corrupt: bool) -> tuple[object, ...]:
        """The thoughts after the chunks that ended, by span, in a model that thinks."""
        return ()

    def _next(self, context: Context, token_id: int, span: Span, position: int) -> Context:
        return chain(context, token_id)

    def _whole(self, span: Span) -> Context:
        """What the span's history alone gives."""
        return context_of(span.history)

    def _run_span(
        self, span: Span, kind: PassKind, corrupt: bool
    ) -> tuple[tuple[Sampled, ...], tuple[TokenLogprob, ...]]:
        canonical = kind is not PassKind.FAST
        deterministic = span.sampling.params.deterministic
        read = self._read(span)
        for position, slot in enumerate(read):
            assert slot.position == position, "a page holds another position's KV"
        context = read[-1].context if read else START
        whole = canonical and all(slot.canonical for slot in read)
        if canonical and deterministic:
            assert whole, "a canonical token of a deterministic request reads fast KV"
        samples, scores = [], []
        first_given = span.sample_from - len(span.scored_ids)
        assert first_given >= 0
        token_ids = [
            self._token(span, at, token_id) for at, token_id in enumerate(span.token_ids, span.start)
        ]
        if kind is not PassKind.CHECK:
            self._check_what_is_known(span)
        said = []
        for offset, token_id in enumerate(token_ids):
            context = self._next(context, token_id, span, span.start + offset)
            if corrupt:
                context = (context[0] ^ 1, *context[1:])
            computed = Slot(span.start + offset, context, whole)
            if offset >= span.num_cached:
                self._slots[self._slot(span, span.start + offset)] = computed
            else:
                cached = self._slots[self._slot(span, span.start + offset)]
                self._check_cached(cached, computed)
                assert cached.canonical or not deterministic, "a deterministic request reads fast KV"
            if offset >= span.sample_from:
                samples.append(self._say(context, canonical, span))
                said.append((span.start + offset + 1, samples[-1].token_id))
            elif offset >= first_given:
                score = logprob(context, span.scored_ids[offset - first_given])
                # Where fast tokens may be wrong, so are their logprobs. A deterministic request must never get them.
                is_wrong = self._error_rate > 0 and not whole
                scores.append(replace(score, logprob=score.logprob - 0.5) if is_wrong else score)
        for position, token_id in (
            said if span.request_index >= 0 else ()
        ):  # only now: a pass reads before it writes
            self._lanes[span.request_index, position % SAMPLED_RING_SIZE] = (
                span.request_id,
                position,
                token_id,
            )
        return tuple(samples), tuple(scores)

    def _check_cached(self, slot: Slot, computed: Slot) -> None:
        """What is in the pages already is what would be written."""
        assert self._corrupt_from is not None or slot.context == computed.context
        assert slot.position == computed.position

    def _token(self, span: Span, position: int, token_id: int) -> int:
        if token_id != UNKNOWN_TOKEN:
            assert 0 <= token_id < VOCAB
            return token_id
        self.num_unknown += 1
        request_id, written, sampled = self._lanes[span.request_index, position % SAMPLED_RING_SIZE]
        assert (request_id, written) == (span.request_id, position), "the ring holds another request's token"
        return sampled

    def _check_what_is_known(self, span: Span) -> None:
        """Who looks back at its tokens is given all of them."""
        samples = span.sample_from < len(span.token_ids)
        needs_history = span.sampling.needs_history and (
            span.request_index < 0 or span.constraint is not None
        )
        if samples and (needs_history or span.constraint is not None):
            assert UNKNOWN_TOKEN not in span.token_ids
        if samples and needs_history:
            known = (*span.history, *span.token_ids)
            assert len(known) == span.stop and UNKNOWN_TOKEN not in known
            before = self._slots[self._slot(span, span.start - 1)].context if span.start else START
            assert self._corrupt_from is not None or self._whole(span) == before

    def _say(self, context: Context, canonical: bool, span: Span) -> Sampled:
        token_id = next_token(context)
        if not canonical and self._rng.random() < self._error_rate:
            token_id = (token_id + 1 + self._rng.randrange(VOCAB - 1)) % VOCAB
        wanted = logprob(context, token_id) if span.logprobs is not None else None
        return Sampled(token_id, wanted, context[0] if span.with_checksums else None)

    def _check(self, one: Pass) -> PassResult:
        """Compute the tokens again in scratch pages, and compare slots and logits."""
        (span,) = one.spans
        scratch = span.pages[len(span.pages) - len(one.original_pages) :]
        table = (*span.pages[: len(span.pages) - len(one.original_pages)], *one.original_pages)
        for ours, theirs in zip(scratch, one.original_pages, strict=True):
            for at in range(self._page_size):
                if (slot := self._slots.get(theirs * self._page_size + at)) is not None:
                    self._slots[ours * self._page_size + at] = replace(slot)
        samples, _ = self._run_span(replace(span, with_checksums=True), PassKind.CHECK, corrupt=False)
        assert len(samples) == len(one.logits_checksums)
        mismatch = None
        for position in range(span.start, span.stop):
            if (
                self._slots[self._slot(span, position)]
                != self._slots[self._slot(replace(span, pages=table), position)]
            ):
                mismatch = f"KV at position {position}"
        if tuple(sample.logits_checksum for sample in samples) != one.logits_checksums:
            mismatch = mismatch or "logits"
        self.num_mismatches += mismatch is not None
        return PassResult(((),), mismatch=mismatch)

    def _read(self, span: Span) -> list[Slot]:
        """What a span's tokens read before them, by position."""
        size = self._page_size
        pages = span.pages[: -(-span.start // size)]
        places = [page * size + at for page in pages for at in range(size)]
        return [self._slots[place] for place in places[: span.start]]

    def _slot(self, span: Span, position: int) -> int:
        return span.pages[position // self._page_size] * self._page_size + position % self._page_size
