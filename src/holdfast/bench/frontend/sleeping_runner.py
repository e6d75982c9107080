"""A model runner that sleeps like a GPU step and gives scripted tokens.

The token after position p of a request is a function of its seed, the length of its prompt and p. So
every pass is canonical, and every engine with the same script gives the same answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.core.step_plan import PassKind, PassResult, Sampled, Span, StepPlan, TokenLogprob
from holdfast.errors import ConfigError

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class StepTime:
    """The time of a step: a fixed part, and more for each token of its passes. In seconds; both 0:
    results are there at once."""

    step: float = 0.0
    token: float = 0.0

    def __post_init__(self) -> None:
        for name in ("step", "token"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ConfigError(f"the time of a {name} must be a number of seconds from 0, not {value}")

    def of(self, plan: StepPlan) -> float:
        """The seconds that this plan takes."""
        return self.step + self.token * sum(one.num_tokens for one in plan.passes)


class SleepingRunner:
    """Runs plans on a device that only sleeps. Plans run one after the other, as on a GPU.

    token_ids are the tokens that answers are made of.
    """

    def __init__(self, times: StepTime, token_ids: Sequence[int]) -> None:
        self._times = times
        self._token_ids = tuple(token_ids)
        self._busy_until = 0.0

    def run(self, plan: StepPlan) -> Sequence[PassResult]:
        return self.start(plan)()

    def start(self, plan: StepPlan) -> Callable[[], Sequence[PassResult]]:
        """Start a plan and return at once. The callable sleeps until the device is done with it."""
        now = time.monotonic()
        ends = self._busy_until = max(now, self._busy_until) + self._times.of(plan)

        def wait() -> Sequence[PassResult]:
            results = [self._run(one.kind, one.spans) for one in plan.passes]
            left = ends - time.monotonic()
            if left > 0:
                time.sleep(left)
            return results

        return wait

    def _run(self, kind: PassKind, spans: Sequence[Span]) -> PassResult:
        assert kind is not PassKind.CHECK, "there are no spot checks"
        assert not any(span.num_pooled for span in spans), "there are no hidden states"
        samples = tuple([self._sample(span) for span in spans])
        scored = any(span.scored_ids for span in spans)
        return PassResult(samples, tuple(map(_score, spans)) if scored else ())

    def _sample(self, span: Span) -> tuple[Sampled, ...]:
        first = span.start + span.sample_from + 1
        return tuple([self._sample_at(span, position) for position in range(first, span.stop + 1)])

    def _sample_at(self, span: Span, position: int) -> Sampled:
        ids, sampling = self._token_ids, span.sampling
        at = _mix(sampling.seed, sampling.prompt_len, position) % len(ids)
        if span.logprobs is None:
            return Sampled(ids[at])
        # The most likely tokens are the next ones of the list.
        top = [(ids[(at + rank) % len(ids)], -1.0 - rank) for rank in range(span.logprobs)]
        return Sampled(ids[at], TokenLogprob(ids[at], -1.0, tuple(top)))


def _score(span: Span) -> tuple[TokenLogprob, ...]:
    return tuple([TokenLogprob(token_id, -1.0) for token_id in span.scored_ids])


def _mix(seed: int, prompt_len: int, position: int) -> int:
    """A hash of three numbers (splitmix64's last steps)."""
    mixed = (seed + 0x9E3779B97F4A7C15 * (position + 1) + 0xD1B54A32D192ED03 * prompt_len) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
