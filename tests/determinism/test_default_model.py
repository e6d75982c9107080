"""The default model: every feature and some combinations at once, each the others' load, under changing schedules."""

import random
from dataclasses import replace

import pytest
from result_checks import assert_counts, assert_does_something, count_conforming
from stress_helpers import FEATURES, SMALL, TEXT, combinations, outcome

from holdfast import LLM
from holdfast.bench.determinism.fault_injection import FaultyProposer
from holdfast.bench.determinism.features import STRUCTURED, Feature, find_features
from holdfast.bench.determinism.stress import StressRun, StressSummary
from holdfast.bench.determinism.stress_load import ProbeRequest, draw_load
from holdfast.core.results import Result, Stats
from holdfast.engine.engine import Engine
from holdfast.errors import ModelNotFound
from holdfast.models.locate import locate
from holdfast.scheduler.policy import DeterminismMode

pytestmark = pytest.mark.smollm2

Asked = dict[str, list[StressRun]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        locate(None)
    except ModelNotFound as error:
        pytest.skip(str(error))
    return LLM(dtype="bf16", kv_memory="256MiB").engine  # as others open it, so that all share a certificate


@pytest.fixture(scope="module")
def known(engine: Engine) -> dict[str, Feature]:
    found = find_features(engine, engine.tokenizer.encode(TEXT))
    return {feature.name: feature for feature in found}


def ask_all(engine: Engine, probes: list[ProbeRequest], mode: DeterminismMode, seed: int) -> list[StressRun]:
    """All of them in one load, in random order, some of them in the middle of others' answers."""
    rng = random.Random(seed)
    load = draw_load(rng, engine, max(probes, key=lambda probe: probe.max_len), mode, SMALL)
    lies = 0.3 if mode == "verify" else 0.0
    schedule = replace(
        load.schedule, max_num_seqs=rng.choice([8, 32]), speculation="ngram", spot_check_rate=0.05
    )
    engine = engine.restarted(schedule)
    engine.runner = FaultyProposer(engine.runner, engine.limits.vocab_size, lies, seed=seed)
    waiting = [(rng.randint(0, 10), number) for number in range(len(probes))]
    results: dict[int, Result] = {}
    ids: dict[int, int] = {}
    step = 0
    while len(results) < len(probes) or engine.has_work:
        for arrives, number in waiting:
            if arrives == step:
                request = engine.prepare(probes[number].prompt, probes[number].params)
                engine.submit(request)
                ids[request.request_id] = number
        for update in engine.step():
            if update.result is not None:
                results[ids[update.request_id]] = update.result
        step += 1
    engine.check()
    assert engine.scheduler.pool.num_held == 0
    return [StressRun(results[number], engine.counters) for number in range(len(probes))]


@pytest.fixture(scope="module")
def asked(engine: Engine, known: dict[str, Feature]) -> Asked:
    """Each feature and five combinations, once in either mode."""
    features = [*known.values(), *combinations(known, 5)]
    probes = [feature.probe() for feature in features]
    auto, verify = ask_all(engine, probes, "auto", 0), ask_all(engine, probes, "verify", 1)
    return {feature.name: list(runs) for feature, *runs in zip(features, auto, verify, strict=True)}


def test_each_has_one_outcome_in_auto_and_verify(asked: Asked) -> None:
    assert set(FEATURES) < asked.keys()
    whole = StressSummary({}, Stats())
    for name, runs in asked.items():
        summary = StressSummary({}, Stats())
        for run in runs:
            assert_counts(run.result)
            summary.add(run)
            whole.add(run)
        assert outcome(summary).error is None or name not in FEATURES, name
    assert whole.num_runs == 2 * len(asked) > 60
    assert whole.stats.rolled_back > 0
    assert whole.stats.looked_up > 0
    assert whole.num_checks > 0
    assert whole.num_revocations == 0


def test_each_feature_does_something(engine: Engine, known: dict[str, Feature], asked: Asked) -> None:
    features = [feature for feature in known.values() if feature.name != "copied text"]
    probes = list(dict.fromkeys(feature.without() for feature in features))  # many have the same
    found = dict(zip(probes, ask_all(engine, probes, "auto", 2), strict=True))
    for feature in features:
        given = asked[feature.name][0].result
        assert_does_something(feature, given, found[feature.without()].result)
        assert count_conforming(engine, feature.probe(), given) == (feature.name in STRUCTURED)
