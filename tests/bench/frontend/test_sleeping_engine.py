"""The engine that sleeps: the real scheduler, scripted answers, the time of a step."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.bench.frontend.sleeping_engine import build_sleeping, parse_times, sleeping_command
from holdfast.bench.frontend.sleeping_runner import StepTime
from holdfast.core.results import RequestOutput, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, InvalidRequest

AT_ONCE = StepTime()
PARAMS = SamplingParams(max_tokens=24, seed=5)


@pytest.fixture(scope="module")
def config(tiny_llama: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama))


def answer(engine: Engine, *all_params: SamplingParams) -> list[Result]:
    """The results of these requests, which run together."""
    ids = []
    for params in all_params:
        request = engine.prepare([3, 4, 5], params)
        engine.submit(request)
        ids.append(request.request_id)
    outputs: list[RequestOutput] = []
    while engine.has_requests:
        outputs += engine.step()
    results = {one.request_id: one.result for one in outputs if one.result is not None}
    return [results[one] for one in ids]


def test_answers_are_the_same_in_every_engine_and_batch(config: EngineConfig) -> None:
    deterministic = replace(PARAMS, deterministic=True, logprobs=2)
    engine = build_sleeping(config, AT_ONCE)
    (alone,) = answer(engine, deterministic)
    among = answer(build_sleeping(config, AT_ONCE), PARAMS, deterministic, replace(PARAMS, seed=6))
    assert alone.choices == among[1].choices and alone.determinism == "certified"
    assert alone.choices[0].token_ids == among[0].choices[0].token_ids != among[2].choices[0].token_ids
    assert len(alone.choices[0].token_ids) == 24 and alone.choices[0].text.isprintable()
    engine.check()


def test_replicas_of_one_configuration_have_one_fingerprint(config: EngineConfig) -> None:
    def digest(config: EngineConfig, times: StepTime = AT_ONCE) -> str:
        return build_sleeping(config, times).fingerprint.digest

    assert digest(config) == digest(config)
    assert len({digest(config), digest(replace(config, dtype="bf16")), digest(config, StepTime(1e-3))}) == 3


def test_step_takes_its_time(config: EngineConfig) -> None:
    engine = build_sleeping(config, StepTime(step=0.005))
    began = time.monotonic()
    answer(engine, PARAMS)
    assert time.monotonic() - began >= 24 * 0.005


def test_command_carries_the_times() -> None:
    *_, step, milliseconds, token, microseconds = sleeping_command(StepTime(0.008, 2e-5))
    times, rest = parse_times([step, milliseconds, token, microseconds, "7"])
    assert (times, rest) == (StepTime(0.008, 2e-5), ["7"])


def test_what_cannot_sleep_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="nothing to verify"):
        build_sleeping(replace(config, determinism="verify"), StepTime())
    with pytest.raises(ConfigError, match="from 0"):
        StepTime(step=-1.0)
    with pytest.raises(InvalidRequest, match="structured output"):
        build_sleeping(config, AT_ONCE).prepare(
            [3], replace(PARAMS, structured=StructuredOutput("regex", "a"))
        )
