"""The default model: every feature and some combinations as concurrent requests, under changing
schedules.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from result_checks import assert_counts, assert_has_effect, count_conforming
from stress_helpers import FEATURES, PROMPT_TEXT, SMALL, combinations, only_result

from holdfast import LLM
from holdfast.bench.faults import FaultyProposer
from holdfast.bench.features import STRUCTURED, Feature, find_features
from holdfast.bench.load import ProbeRequest, draw_load
from holdfast.bench.stress import StressRun, StressSummary
from holdfast.core.results import Result, Stats
from holdfast.engine.engine import Engine
from holdfast.engine.replay import replay
from holdfast.receipts.reader import parse_receipt
from holdfast.scheduler.policy import DeterminismMode

pytestmark = pytest.mark.smollm2

Runs = dict[str, list[StressRun]]
RECEIPTS = [  # with the quantised blocks of the file, as the engine of the other tests, and in bf16
    pytest.param(path, id=path.stem, marks=[] if path.stem.endswith("-blocks") else [pytest.mark.long])
    for path in sorted((Path(__file__).parent / "receipts").glob("*.json"))
]


@pytest.fixture(scope="module")
def llm() -> LLM:
    # Few batch sizes to certify, and those of the tests' server of this model: both share a certificate.
    return LLM(kv_memory="256MiB", max_pass_tokens=64)


@pytest.fixture(scope="module")
def engine(llm: LLM) -> Engine:
    return llm.engine


@pytest.fixture(scope="module")
def known(engine: Engine) -> dict[str, Feature]:
    found = find_features(engine, engine.tokenizer.encode(PROMPT_TEXT))
    return {feature.name: feature for feature in found}


def run_all(engine: Engine, probes: list[ProbeRequest], mode: DeterminismMode, seed: int) -> list[StressRun]:
    """Run all probes in one load. They arrive in random order, some during the answers to others."""
    rng = random.Random(seed)
    load = draw_load(rng, engine, max(probes, key=lambda probe: probe.max_len), mode, SMALL)
    fault_rate = 0.3 if mode == "verify" else 0.0
    schedule = replace(
        load.schedule, max_num_seqs=rng.choice([8, 32]), speculation="ngram", spot_check_rate=0.05
    )
    engine = engine.restarted(schedule)
    engine.runner = FaultyProposer(engine.runner, engine.limits.vocab_size, fault_rate, seed=seed)
    waiting = [(rng.randint(0, 10), number) for number in range(len(probes))]
    results: dict[int, Result] = {}
    ids: dict[int, int] = {}
    step = 0
    while len(results) < len(probes) or engine.has_work:
        for arrival_step, number in waiting:
            if arrival_step == step:
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
def all_runs(engine: Engine, known: dict[str, Feature]) -> Runs:
    """Each feature and five combinations, once in each mode."""
    features = [*known.values(), *combinations(known, 5)]
    probes = [feature.probe() for feature in features]
    auto, verify = run_all(engine, probes, "auto", 0), run_all(engine, probes, "verify", 1)
    return {feature.name: list(runs) for feature, *runs in zip(features, auto, verify, strict=True)}


def test_each_feature_has_one_result_in_auto_and_verify(all_runs: Runs) -> None:
    assert set(FEATURES) < all_runs.keys()
    whole = StressSummary({}, Stats())
    for name, runs in all_runs.items():
        summary = StressSummary({}, Stats())
        for run in runs:
            assert_counts(run.result)
            summary.add(run)
            whole.add(run)
        assert only_result(summary).error is None or name not in FEATURES, name
    assert whole.num_runs == 2 * len(all_runs) > 60
    assert whole.stats.rolled_back > 0
    assert whole.stats.looked_up > 0
    assert whole.num_checks > 0
    assert whole.num_revocations == 0


@pytest.mark.long  # test_features.py shows it on a tiny model
def test_each_feature_changes_the_result(engine: Engine, known: dict[str, Feature], all_runs: Runs) -> None:
    features = [feature for feature in known.values() if feature.name != "copied text"]
    probes = list(dict.fromkeys(feature.without() for feature in features))  # many have the same
    found = dict(zip(probes, run_all(engine, probes, "auto", 2), strict=True))
    for feature in features:
        given = all_runs[feature.name][0].result
        assert_has_effect(feature, given, found[feature.without()].result)
        assert count_conforming(engine, feature.probe(), given) == (feature.name in STRUCTURED)


@pytest.mark.parametrize("path", RECEIPTS)
def test_receipt_of_another_cpu_is_replayed(llm: LLM, path: Path) -> None:
    """Recorded with the portable recipe on the CPU that the file's name says. Where a test of
    `test_portable_bits.py` fails too, a kernel has changed. `record_portable_receipt.py` records one."""
    receipt = parse_receipt(json.loads(path.read_text()))
    assert receipt.is_portable
    if llm.engine.fingerprint.parts["recipe"] != receipt.fingerprint.parts["recipe"]:  # bf16
        dtype = "auto" if path.stem.endswith("-blocks") else "bf16"
        llm = LLM(dtype=dtype, kv_memory="256MiB", max_pass_tokens=64, portable=True)
    assert llm.engine.fingerprint.differences(receipt.fingerprint) == []
    assert replay(llm, receipt).difference is None
