"""A model made of hashes, for testing the protocol without tensors.

Every KV slot stores the hash of all tokens up to it and whether a canonical pass wrote it. A pass reads its context
through the page table, so a wrong page, a stale slot or a non-canonical read shows at once. The canonical next token is
a function of the hash alone; a fast pass may lie.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.params import SamplingParams
from holdfast.core.plan import Pass, PassKind, PassResult, Plan, Sampled, Span
from holdfast.core.stop import finish_reason

VOCAB = 50
EOS = 0


def chain(previous: int, token_id: int) -> int:
    digest = hashlib.blake2b(f"{previous}:{token_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def next_token(context: int) -> int:
    return context % VOCAB


def reference(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """The answer a canonical pass after the other gives."""
    context = 0
    for token_id in prompt:
        context = chain(context, token_id)
    output: list[int] = []
    while True:
        token_id = next_token(context)
        output.append(token_id)
        if finish_reason(token_id, len(output), False, params, frozenset({EOS})):
            return tuple(output)
        context = chain(context, token_id)


@dataclass
class Slot:
    position: int
    context: int
    canonical: bool


class ScriptedRunner:
    """Runs plans over hashes. `lie` is the chance that a fast row says another token."""

    def __init__(
        self, page_size: int, lie: float, seed: int, during: Callable[[], None] | None = None
    ) -> None:
        self._page_size = page_size
        self._lie = lie
        self._rng = random.Random(seed)
        self._slots: dict[int, Slot] = {}
        self._during = during
        self.passes: list[Pass] = []

    def run(self, plan: Plan) -> list[PassResult]:
        results = []
        for one in plan.passes:
            self.passes.append(one)
            assert one.num_rows <= one.padded_rows
            results.append(PassResult(tuple(self._run_span(span, one.kind) for span in one.spans)))
        if self._during is not None:
            self._during()
        return results

    def _run_span(self, span: Span, kind: PassKind) -> tuple[Sampled, ...]:
        canonical = kind is PassKind.CANONICAL
        deterministic = span.sampling.params.deterministic
        for position in range(span.start):
            slot = self._slots[self._slot(span, position)]
            assert slot.position == position, "a page holds another position's KV"
            if canonical and deterministic:
                assert slot.canonical, "a canonical row of a deterministic request reads fast KV"
        context = self._slots[self._slot(span, span.start - 1)].context if span.start else 0
        whole = canonical and all(
            self._slots[self._slot(span, position)].canonical for position in range(span.start)
        )
        samples = []
        for offset, token_id in enumerate(span.token_ids):
            context = chain(context, token_id)
            self._slots[self._slot(span, span.start + offset)] = Slot(span.start + offset, context, whole)
            if offset >= span.sample_from:
                samples.append(Sampled(self._say(context, canonical)))
        return tuple(samples)

    def _say(self, context: int, canonical: bool) -> int:
        truth = next_token(context)
        if canonical or self._rng.random() >= self._lie:
            return truth
        return (truth + 1 + self._rng.randrange(VOCAB - 1)) % VOCAB

    def _slot(self, span: Span, position: int) -> int:
        return span.pages[position // self._page_size] * self._page_size + position % self._page_size
