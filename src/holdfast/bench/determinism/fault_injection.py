"""A runner whose fast passes lie: wrong candidates, so that the canonical pass has something to catch.

Only candidates of deterministic requests are changed, and nothing but their token; in a model that thinks, what was thought
behind their chunks, too. The engine knows nothing of it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, StepPlan, ThoughtIds
from holdfast.engine.engine import PlanRunner


class FaultyProposer:
    """Runs plans, and proposes another token with the given chance: any, one no grammar knows, or one of the ends."""

    def __init__(
        self, runner: PlanRunner, vocab_size: int, chance: float, *, seed: int = 0, ends: Sequence[int] = ()
    ) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._chance = chance
        self._rng = random.Random(seed)
        self._ends = tuple(ends)
        self.num_lies = 0

    def run(self, plan: StepPlan) -> list[PassResult]:
        return self._spoil(plan, self._runner.run(plan))

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        """Lies are told when the plan is read. A pass under way by then computed with the true token, and whatever it gives
        behind a lie is dropped with it."""
        read = self._runner.start(plan)
        return lambda: self._spoil(plan, read())

    def _spoil(self, plan: StepPlan, true: Sequence[PassResult]) -> list[PassResult]:
        results = list(true)
        for index, one in enumerate(plan.passes):
            if one.kind is PassKind.FAST:
                samples = tuple(
                    self._tell(given) if span.sampling.params.deterministic else given
                    for span, given in zip(one.spans, results[index].samples, strict=True)
                )
                thoughts = self._think(one, results[index].thoughts)
                results[index] = replace(results[index], samples=samples, thoughts=thoughts)
        return results

    def _think(
        self, one: Pass, true: tuple[tuple[ThoughtIds, ...], ...]
    ) -> tuple[tuple[ThoughtIds, ...], ...]:
        if not true:
            return true
        return tuple(
            tuple(
                (*thought[:-1], self._rng.randrange(self._vocab_size))
                if span.sampling.params.deterministic and self._rng.random() < self._chance
                else thought
                for thought in found
            )
            for span, found in zip(one.spans, true, strict=True)
        )

    def _tell(self, samples: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        return tuple(self._lie(sample) if self._rng.random() < self._chance else sample for sample in samples)

    def _lie(self, sample: Sampled) -> Sampled:
        self.num_lies += 1
        if self._ends and self._rng.random() < 0.25:
            token_id = self._rng.choice(self._ends)
            if token_id != sample.token_id:
                return replace(sample, token_id=token_id)
        token_id = (sample.token_id + self._rng.randrange(1, self._vocab_size)) % self._vocab_size
        return replace(sample, token_id=token_id)
