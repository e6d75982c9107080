"""Fault injection for every feature: with many wrong candidates, the answer, its structured output
and its logprobs are those of a run without faults, and the counters add up.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ngram_faults import inject_ngram_faults
from result_checks import assert_counts, assert_scores_match, count_conforming, num_tokens, with_logprobs
from stress_helpers import FEATURES, background_params, combinations, engine, features

from holdfast.bench.features import STRUCTURED, Feature
from holdfast.bench.load import BackgroundRequest, ProbeRequest, StressLoad
from holdfast.bench.stress import StressRun, result_bits, run_alone, run_in_load
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode

FAULT_RATE = 0.6  # of the candidates of a fast pass
GENERATING = [name for name in FEATURES if name != "scores only"]


def make_load(
    engine: Engine, mode: DeterminismMode, probe: ProbeRequest, others: Sequence[SamplingParams] = ()
) -> StressLoad:
    """The probe alone, or among background requests with its prefix, every second one
    deterministic.
    """
    schedule = replace(
        engine.scheduler.config, determinism=mode, speculation="ngram", spot_check_rate=1.0 if others else 0.0
    )
    background = tuple(
        BackgroundRequest(
            (*probe.prompt[: 3 + number], number + 9),
            replace(params, seed=number, deterministic=number % 2 == 0),
            arrival_step=number,
        )
        for number, params in enumerate(others)
    )
    fault_rate = FAULT_RATE if mode == "verify" else 0.0
    return StressLoad(background, 1, 0, schedule, engine.scheduler.pool.num_pages, fault_rate)


def assert_correct(engine: Engine, feature: Feature, probe: ProbeRequest, run: StressRun) -> None:
    result = run.result
    assert result_bits(result) == result_bits(run_alone(engine, probe)), feature.name
    assert run.counters.num_revocations == 0
    assert_counts(result)
    assert_scores_match(engine, probe, result)
    num_complete = count_conforming(engine, probe, result)
    assert num_complete == 1 or feature.name not in STRUCTURED


@pytest.mark.parametrize("name", GENERATING)
def test_faulty_fast_pass_does_not_change_the_result(name: str) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    probe = with_logprobs(feature.probe())
    run = run_in_load(one, make_load(one, "verify", probe), probe)
    assert_correct(one, feature, probe, run)
    assert run.result.stats.rolled_back > 0
    assert run.result.determinism == "verified"


@pytest.mark.parametrize("name", GENERATING)
def test_faulty_ngram_proposer_does_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    probe = with_logprobs(feature.probe())
    expected = run_alone(one, probe)
    with monkeypatch.context() as patch:
        inject_ngram_faults(patch, one.limits.vocab_size, 0.3, truths=[expected])
        run = run_in_load(one, make_load(one, "auto", probe), probe)
    assert_correct(one, feature, probe, run)
    stats = run.result.stats
    assert stats.rolled_back > 0
    assert stats.looked_up > 0
    assert stats.accepted > 0
    assert run.result.determinism == expected.determinism


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_all_faults_together_do_not_change_combinations(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, known = engine("c", "fp32"), features("c", "fp32")
    rolled_back = 0
    others = background_params(known)
    for number, feature in enumerate(combinations(known, 20, seed=2)):
        probe = with_logprobs(feature.probe())
        expected = run_alone(one, probe)
        with monkeypatch.context() as patch:
            inject_ngram_faults(patch, one.limits.vocab_size, 0.2, truths=[expected], seed=number)
            run = run_in_load(one, make_load(one, mode, probe, others[number : number + 5]), probe)
        assert_correct(one, feature, probe, run)
        rolled_back += run.result.stats.rolled_back
    assert rolled_back > 100


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_penalties_do_not_count_rejected_candidates(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy: each token must have the best reported logprob after the penalties of the tokens
    before it.
    """
    one = engine("c", "bf16")
    feature = features("c", "bf16")["greedy"]
    params = replace(
        feature.probe().params, allowed_token_ids=range(40, 60), presence_penalty=0.7, frequency_penalty=0.9,
        logit_bias={45: 1.5}, logprobs=100, max_tokens=40,
    )  # fmt: skip
    probe = ProbeRequest(feature.prompt, params)
    inject_ngram_faults(monkeypatch, one.limits.vocab_size, 0.2, truths=[run_alone(one, probe)])
    result = run_in_load(one, make_load(one, mode, probe), probe).result
    assert result.stats.rolled_back > 10
    assert result.stats.accepted > 10
    assert len(set(result.token_ids)) < len(result.token_ids) == 40
    num_compared = 0
    for at, entry in enumerate(result.logprobs or ()):
        known = {**dict(entry.top), entry.token_id: entry.logprob}
        penalized = {
            id_: logprob
            + 1.5 * (id_ == 45)
            - 0.9 * (count := result.token_ids[:at].count(id_))
            - 0.7 * (count > 0)
            for id_, logprob in known.items()
            if 40 <= id_ < 60
        }
        num_compared += len(penalized) - 1
        assert penalized[entry.token_id] >= max(penalized.values()) - 1e-4
    assert num_compared > 40


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_request_without_a_legal_token_fails_despite_faults(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine("c", "fp32")
    (bad_id,) = one.tokenizer.encode("p")
    params = SamplingParams(
        max_tokens=16, temperature=0, deterministic=True, bad_token_ids=[bad_id],
        structured=StructuredOutput(choice=["kelp"]),
    )  # fmt: skip
    probe = ProbeRequest((5, 6, 7), params)
    inject_ngram_faults(monkeypatch, one.limits.vocab_size, FAULT_RATE)
    for _ in range(5):
        result = run_in_load(one, make_load(one, mode, probe), probe).result
        assert (result.finish_reason, result.text) == ("error", "kel")
        assert "no token is left" in (result.error or "")
        assert num_tokens(result) == 3
        assert_counts(result)
