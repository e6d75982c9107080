"""Requests that arrive one by one, on an engine that is stepped in this thread.

A request's clock starts when it arrives, not when it is submitted: a long step delays it, and that
is part of its latency.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine


@dataclass(frozen=True)
class Arrival:
    """A request, and when it arrives: seconds after the start."""

    at: float
    prompt: list[int]
    params: SamplingParams


@dataclass
class OnlineRun:
    """Seconds from each arrival to its first token, and between tokens. The tokens of one delta come
    at once: the first has the whole gap, the others none."""

    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    num_waiting_at_end: int | None = None  # after the step that followed the last arrival


def run_online(engine: Engine, arrivals: Sequence[Arrival]) -> OnlineRun:
    """Run all requests to their end."""
    run = OnlineRun()
    arrived_at: dict[int, float] = {}
    last_at: dict[int, float] = {}
    pending = list(reversed(arrivals))
    started = time.perf_counter()
    while pending or engine.has_requests:
        now = time.perf_counter() - started
        while pending and pending[-1].at <= now:
            one = pending.pop()
            request = engine.prepare(one.prompt, one.params, want_receipt=False)
            arrived_at[request.request_id] = one.at
            engine.submit(request)
        if not engine.has_work:
            time.sleep(max(0.0, min(0.001, pending[-1].at - now)))
            continue
        outputs = engine.step()
        if not pending and run.num_waiting_at_end is None:
            run.num_waiting_at_end = engine.scheduler.num_waiting
        now = time.perf_counter() - started
        for output in outputs:
            count = len(output.delta.token_ids)
            if not count:
                continue
            before = last_at.get(output.request_id)
            if before is None:
                run.first_token.append(now - arrived_at[output.request_id])
                count -= 1
            else:
                run.between_tokens.append(now - before)
                count -= 1
            run.between_tokens.extend([0.0] * count)
            last_at[output.request_id] = now
    while engine.has_work:
        engine.step()
    return run
