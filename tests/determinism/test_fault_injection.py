"""Forced rollbacks: proposals that are wrong half of the time, at every feature. The answer, its form, its logprobs and its
counts are those of the truth; nothing is left behind.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ngram_faults import inject_ngram_faults
from result_checks import assert_counts, assert_scored_alike, count_conforming, num_tokens, with_logprobs
from stress_helpers import FEATURES, combinations, engine, features, settings

from holdfast.bench.determinism.features import STRUCTURED, Feature
from holdfast.bench.determinism.stress import StressRun, result_bits, run_alone, run_in_load
from holdfast.bench.determinism.stress_load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode

WRONG = 0.6  # of a fast pass's candidates
SPEAKING = [name for name in FEATURES if name != "scores only"]


def haystack(
    engine: Engine, mode: DeterminismMode, probe: ProbeRequest, others: Sequence[SamplingParams] = ()
) -> StressLoad:
    """The probe alone, or among others, every second of them deterministic, that begin like it."""
    schedule = replace(
        engine.scheduler.config, determinism=mode, speculation="ngram", spot_check_rate=1.0 if others else 0.0
    )
    neighbours = tuple(
        BackgroundRequest(
            (*probe.prompt[: 3 + number], number + 9),
            replace(params, seed=number, deterministic=number % 2 == 0),
            arrival_step=number,
        )
        for number, params in enumerate(others)
    )
    lies = WRONG if mode == "verify" else 0.0
    return StressLoad(neighbours, 1, 0, schedule, engine.scheduler.pool.num_pages, lies)


def assert_true(engine: Engine, feature: Feature, probe: ProbeRequest, run: StressRun) -> None:
    result = run.result
    assert result_bits(result) == result_bits(run_alone(engine, probe)), feature.name
    assert run.counters.num_revocations == 0
    assert_counts(result)
    assert_scored_alike(engine, probe, result)
    num_complete = count_conforming(engine, probe, result)
    assert num_complete == 1 or feature.name not in STRUCTURED


@pytest.mark.parametrize("name", SPEAKING)
def test_a_lying_fast_pass_changes_nothing(name: str) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    probe = with_logprobs(feature.probe())
    run = run_in_load(one, haystack(one, "verify", probe), probe)
    assert_true(one, feature, probe, run)
    assert run.result.stats.rolled_back > 0
    assert run.result.determinism == "verified"


@pytest.mark.parametrize("name", SPEAKING)
def test_a_lying_look_up_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    probe = with_logprobs(feature.probe())
    truth = run_alone(one, probe)
    with monkeypatch.context() as patch:
        inject_ngram_faults(patch, one.limits.vocab_size, 0.3, truths=[truth])
        run = run_in_load(one, haystack(one, "auto", probe), probe)
    assert_true(one, feature, probe, run)
    stats = run.result.stats
    assert stats.rolled_back > 0
    assert stats.looked_up > 0
    assert stats.accepted > 0
    assert run.result.determinism == truth.determinism


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_combinations_among_others_bear_all_lies_at_once(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, known = engine("c", "fp32"), features("c", "fp32")
    rolled_back = 0
    others = settings(known)
    for number, feature in enumerate(combinations(known, 20, seed=2)):
        probe = with_logprobs(feature.probe())
        truth = run_alone(one, probe)
        with monkeypatch.context() as patch:
            inject_ngram_faults(patch, one.limits.vocab_size, 0.2, truths=[truth], seed=number)
            run = run_in_load(one, haystack(one, mode, probe, others[number : number + 5]), probe)
        assert_true(one, feature, probe, run)
        rolled_back += run.result.stats.rolled_back
    assert rolled_back > 100


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_penalties_count_no_lie(mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, so each token must be the best of the reported ones once what was said before is charged for."""
    one = engine("c", "bf16")
    said = features("c", "bf16")["greedy"]
    params = replace(
        said.probe().params, allowed_token_ids=range(40, 60), presence_penalty=0.7, frequency_penalty=0.9,
        logit_bias={45: 1.5}, logprobs=100, max_tokens=40,
    )  # fmt: skip
    probe = ProbeRequest(said.prompt, params)
    inject_ngram_faults(monkeypatch, one.limits.vocab_size, 0.2, truths=[run_alone(one, probe)])
    result = run_in_load(one, haystack(one, mode, probe), probe).result
    assert result.stats.rolled_back > 10
    assert result.stats.accepted > 10
    assert len(set(result.token_ids)) < len(result.token_ids) == 40
    num_compared = 0
    for at, entry in enumerate(result.logprobs or ()):
        known = {**dict(entry.top), entry.token_id: entry.logprob}
        charged = {
            id_: logprob
            + 1.5 * (id_ == 45)
            - 0.9 * (count := result.token_ids[:at].count(id_))
            - 0.7 * (count > 0)
            for id_, logprob in known.items()
            if 40 <= id_ < 60
        }
        num_compared += len(charged) - 1
        assert charged[entry.token_id] >= max(charged.values()) - 1e-4
    assert num_compared > 40


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_where_no_token_is_left_no_lie_takes_its_place(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine("c", "fp32")
    (forbidden,) = one.tokenizer.encode("p")
    params = SamplingParams(
        max_tokens=16, temperature=0, deterministic=True, bad_token_ids=[forbidden],
        structured=StructuredOutput(choice=["kelp"]),
    )  # fmt: skip
    probe = ProbeRequest((5, 6, 7), params)
    inject_ngram_faults(monkeypatch, one.limits.vocab_size, WRONG)
    for _ in range(5):
        result = run_in_load(one, haystack(one, mode, probe), probe).result
        assert (result.finish_reason, result.text) == ("error", "kel")
        assert "no token is left" in (result.error or "")
        assert num_tokens(result) == 3
        assert_counts(result)
