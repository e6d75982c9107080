"""Fault injection: a runner that corrupts the candidates of fast passes, so that verification has
something to reject.

Only candidates of deterministic requests are changed: their token id, and the last id of what a model's
extension found. Everything else passes through. The engine does not know about it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, StepPlan
from holdfast.engine.engine import PlanRunner


class FaultyProposer:
    """Replace candidates by random tokens, which a grammar may not allow, or by one of `ends`."""

    def __init__(
        self, runner: PlanRunner, vocab_size: int, chance: float, *, seed: int = 0, ends: Sequence[int] = ()
    ) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._chance = chance
        self._rng = random.Random(seed)
        self._ends = tuple(ends)
        self.num_faults = 0

    def run(self, plan: StepPlan) -> list[PassResult]:
        return self._corrupt(plan, self._runner.run(plan))

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        """Start a plan. Results of passes in flight after a fault are rejected together with the fault."""
        read = self._runner.start(plan)
        return lambda: self._corrupt(plan, read())

    def _corrupt(self, plan: StepPlan, true: Sequence[PassResult]) -> list[PassResult]:
        results = list(true)
        for index, one in enumerate(plan.passes):
            if one.kind is PassKind.FAST:
                samples = tuple(
                    self._corrupt_samples(given) if span.sampling.params.deterministic else given
                    for span, given in zip(one.spans, results[index].samples, strict=True)
                )
                extra = self._corrupt_extra(one, results[index].extra)
                results[index] = replace(results[index], samples=samples, extra=extra)
        return results

    def _corrupt_extra(self, one: Pass, true: tuple[Any, ...]) -> tuple[object, ...]:
        if not true:
            return true
        return tuple(
            tuple(
                (*ids[:-1], self._rng.randrange(self._vocab_size))
                if span.sampling.params.deterministic and self._rng.random() < self._chance
                else ids
                for ids in found
            )
            for span, found in zip(one.spans, true, strict=True)
        )

    def _corrupt_samples(self, samples: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        return tuple(
            self._wrong(sample) if self._rng.random() < self._chance else sample for sample in samples
        )

    def _wrong(self, sample: Sampled) -> Sampled:
        self.num_faults += 1
        if self._ends and self._rng.random() < 0.25:
            token_id = self._rng.choice(self._ends)
            if token_id != sample.token_id:
                return replace(sample, token_id=token_id)
        token_id = (sample.token_id + self._rng.randrange(1, self._vocab_size)) % self._vocab_size
        return replace(sample, token_id=token_id)
