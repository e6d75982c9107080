"""Deterministic requests share their passes."""

from dataclasses import replace

from stress_helpers import PROMPT, engine

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.status import EngineCounters
from holdfast.scheduler.policy import DeterminismMode


def _run(one: Engine, mode: DeterminismMode, streams: int) -> EngineCounters:
    fresh = one.restarted(
        replace(one.scheduler.config, determinism=mode, prefix_cache=False, speculation="off")
    )
    for number in range(streams):
        params = SamplingParams(
            max_tokens=48, temperature=0.7, seed=number, ignore_eos=True, deterministic=True
        )
        fresh.submit(fresh.prepare((*PROMPT, number + 2), params))
    while fresh.has_work:
        fresh.step()
    return fresh.counters


def test_canonical_passes_hold_tokens_of_several_requests() -> None:
    one = engine("c", "bf16")
    for mode in ("auto", "verify"):
        counters = _run(one, mode, 8)
        assert counters.num_shared_canonical_passes > 0.5 * counters.num_canonical_passes


def test_eight_streams_take_about_as_many_passes_as_one() -> None:
    one = engine("c", "bf16")
    assert _run(one, "auto", 8).num_steps <= 1.2 * _run(one, "auto", 1).num_steps
    assert _run(one, "verify", 8).num_steps <= 2 * _run(one, "verify", 1).num_steps
