"""Time one run of an engine over concurrent requests, from the first submission to the last token.

Every request must generate exactly as many tokens as it asks for. The time of a decode step is the
interval between the ends of two steps while all requests decode: after the last prefill and before
the first request finishes.
"""

import gc
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.garbage_collection import frozen_heap
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.errors import EngineStopped


@dataclass(frozen=True)
class Timing:
    """One run. first_seconds is the time until every request has its first token.

    step_ms is the median decode step, None if there were too few.
    """

    seconds: float
    first_seconds: float
    num_tokens: int
    num_prompt_tokens: int
    step_ms: float | None
    candidates: int
    rolled_back: int
    revocations: int

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def prefill_speed(self) -> float:
        return self.num_prompt_tokens / self.first_seconds


def draw_prompts(rng: random.Random, count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts of random tokens."""
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def run_once(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int, *, deterministic: bool
) -> Timing:
    """Run all prompts concurrently, greedy. Raises if a request fails or has too few tokens."""
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=deterministic
    )
    requests = [engine.prepare(prompt, params, want_receipt=False) for prompt in prompts]
    waiting = {request.request_id for request in requests}  # for their first token
    results: dict[int, Result] = {}
    step_ends: list[float] = []
    gc.collect()
    with frozen_heap():  # as in `LLM.generate`
        started = time.perf_counter()
        first = started
        for request in requests:
            engine.submit(request)
        while len(results) < len(requests):
            updates = engine.step()
            now = time.perf_counter()
            all_decode = not waiting and not results
            for update in updates:
                if waiting and update.delta.token_ids:
                    waiting.discard(update.request_id)
                    if not waiting:
                        first = now
                if update.result is not None:
                    results[update.request_id] = update.result
            if all_decode:
                step_ends.append(now)
        seconds = time.perf_counter() - started
        while engine.has_work:
            engine.step()
    require_complete(results.values(), num_tokens)
    return Timing(
        seconds=seconds,
        first_seconds=first - started,
        num_tokens=sum(len(result.token_ids) for result in results.values()),
        num_prompt_tokens=sum(len(prompt) for prompt in prompts),
        step_ms=median_ms(step_ends),
        candidates=sum(result.stats.candidates for result in results.values()),
        rolled_back=sum(result.stats.rolled_back for result in results.values()),
        revocations=engine.counters.num_revocations,
    )


def require_complete(results: Iterable[Result], num_tokens: int) -> None:
    for result in results:
        if result.error is not None:
            raise EngineStopped(f"a request of the benchmark failed: {result.error}")
        if len(result.token_ids) != num_tokens:
            raise EngineStopped(f"a request generated {len(result.token_ids)} tokens instead of {num_tokens}")


def median_ms(ends: Sequence[float]) -> float | None:
    """The median interval without the first one, which may contain the end of a prefill."""
    gaps = [1e3 * (later - earlier) for earlier, later in pairwise(ends[1:])]
    return statistics.median(gaps) if gaps else None
