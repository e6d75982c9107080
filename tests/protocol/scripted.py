"""A model made of hashes, for testing the protocol without tensors.

Every KV slot stores the hash of all tokens up to it and whether a canonical pass wrote it. A pass reads its context
through the page table, so a wrong page, a stale slot or a non-canonical read shows at once. The canonical next token is
a function of the context alone; a fast pass may lie, and so may certified passes from some time on. A prompt that begins
with COPIES is answered with text that repeats itself, so that look-ups find something.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.core.params import SamplingParams
from holdfast.core.plan import Pass, PassKind, PassResult, Plan, Sampled, Span, TokenLogprob
from holdfast.core.stop import finish_reason

VOCAB = 50
EOS = 0
COPIES = 2

Context = tuple[int, int, bool]  # hash of all tokens, the last token, whether the text repeats itself
START: Context = (0, 0, False)


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
    """Runs plans over hashes. `lie` is the chance that a fast row says another token; from pass number `corrupt_from` on
    certified passes are wrong too.
    """

    def __init__(
        self,
        page_size: int,
        lie: float,
        seed: int,
        during: Callable[[], None] | None = None,
        corrupt_from: int | None = None,
    ) -> None:
        self._page_size = page_size
        self._lie = lie
        self._rng = random.Random(seed)
        self._slots: dict[int, Slot] = {}
        self._during = during
        self._corrupt_from = corrupt_from
        self.passes: list[Pass] = []
        self.num_mismatches = 0

    def run(self, plan: Plan) -> list[PassResult]:
        results = []
        for one in plan.passes:
            self.passes.append(one)
            assert one.num_rows <= one.padded_rows
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
        return PassResult(tuple(samples for samples, _ in given), scores if any(scores) else ())

    def _run_span(
        self, span: Span, kind: PassKind, corrupt: bool
    ) -> tuple[tuple[Sampled, ...], tuple[TokenLogprob, ...]]:
        canonical = kind is PassKind.CANONICAL
        deterministic = span.sampling.params.deterministic
        for position in range(span.start):
            slot = self._slots[self._slot(span, position)]
            assert slot.position == position, "a page holds another position's KV"
            if canonical and deterministic:
                assert slot.canonical, "a canonical row of a deterministic request reads fast KV"
        context = self._slots[self._slot(span, span.start - 1)].context if span.start else START
        whole = canonical and all(
            self._slots[self._slot(span, position)].canonical for position in range(span.start)
        )
        samples, scores = [], []
        first_given = span.sample_from - len(span.given)
        assert first_given >= 0
        for offset, token_id in enumerate(span.token_ids):
            context = chain(context, token_id)
            if corrupt:
                context = (context[0] ^ 1, *context[1:])
            self._slots[self._slot(span, span.start + offset)] = Slot(span.start + offset, context, whole)
            if offset >= span.sample_from:
                samples.append(self._say(context, canonical, span))
            elif offset >= first_given:
                scores.append(logprob(context, span.given[offset - first_given]))
        return tuple(samples), tuple(scores)

    def _say(self, context: Context, canonical: bool, span: Span) -> Sampled:
        token_id = next_token(context)
        if not canonical and self._rng.random() < self._lie:
            token_id = (token_id + 1 + self._rng.randrange(VOCAB - 1)) % VOCAB
        wanted = logprob(context, token_id) if span.logprobs is not None else None
        return Sampled(token_id, wanted, context[0] if span.watched else None)

    def _check(self, one: Pass) -> PassResult:
        """Compute the rows again in scratch pages, and compare slots and logits."""
        (span,) = one.spans
        scratch = span.pages[len(span.pages) - len(one.originals) :]
        table = (*span.pages[: len(span.pages) - len(one.originals)], *one.originals)
        for ours, theirs in zip(scratch, one.originals, strict=True):
            for at in range(self._page_size):
                if (slot := self._slots.get(theirs * self._page_size + at)) is not None:
                    self._slots[ours * self._page_size + at] = replace(slot)
        samples, _ = self._run_span(replace(span, watched=True), PassKind.CANONICAL, corrupt=False)
        assert len(samples) == len(one.logit_bits)
        mismatch = None
        for position in range(span.start, span.stop):
            if (
                self._slots[self._slot(span, position)]
                != self._slots[self._slot(replace(span, pages=table), position)]
            ):
                mismatch = f"KV at position {position}"
        if tuple(sample.logit_bits for sample in samples) != one.logit_bits:
            mismatch = mismatch or "logits"
        self.num_mismatches += mismatch is not None
        return PassResult(((),), mismatch=mismatch)

    def _slot(self, span: Span, position: int) -> int:
        return span.pages[position // self._page_size] * self._page_size + position % self._page_size
