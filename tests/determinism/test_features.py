"""Each feature changes the result of its request.

Otherwise a stress test of it would prove nothing.
"""

import random
from dataclasses import replace

import pytest
from result_checks import assert_has_effect, count_conforming
from stress_helpers import FEATURES, combinations, engine, features

from holdfast.bench.features import STRUCTURED, combine
from holdfast.bench.stress import result_bits, run_alone


def test_all_features_are_listed() -> None:
    assert tuple(features("c", "fp32")) == FEATURES


@pytest.mark.parametrize("name", [name for name in FEATURES if name != "copied text"])
def test_feature_changes_the_result(name: str) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    assert_has_effect(feature, run_alone(one, feature.probe()), run_alone(one, feature.without()))


def test_ngram_candidates_do_not_change_the_result() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["copied text"]
    given, without = run_alone(one, feature.probe()), run_alone(one, feature.without())
    assert given.stats.looked_up > without.stats.looked_up == 0
    assert given.stats.accepted > 0
    assert result_bits(given) == result_bits(without)


def test_stop_text_spans_two_tokens() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["stop text"]
    stop = feature.probe().params.stop_strings[0]
    result = run_alone(one, feature.probe())
    assert result.finish_reason == "stop"
    assert stop not in result.text
    whole = one.tokenizer.decode(result.token_ids)
    assert whole.startswith(result.text + stop)
    assert all(stop not in one.tokenizer.decode([token_id]) for token_id in result.token_ids)


@pytest.mark.parametrize("name", STRUCTURED)
def test_complete_structured_output_ends_the_answer_before_min_tokens(name: str) -> None:
    one, probe = engine("c", "fp32"), features("c", "fp32")[name].probe()
    longer = replace(probe, params=replace(probe.params, min_tokens=60))
    assert count_conforming(one, longer, run_alone(one, longer)) == 1 or name == "JSON object"


def test_combinations_are_valid_and_cover_every_feature() -> None:
    known = features("c", "fp32")
    drawn = combinations(known, 200)
    names = {name for feature in drawn for name in feature.name.split(" + ")}
    assert names == set(FEATURES) - {"scores only"}
    assert all(2 <= len(feature.name.split(" + ")) <= 6 for feature in drawn)
    assert drawn == combinations(known, 200)  # the same seed


def test_combinations_never_contradict() -> None:
    known = features("c", "fp32")
    pair = (known["JSON schema"], known["regex"], known["echo"])
    for seed in range(20):
        assert "echo" in combine(random.Random(seed), pair).name
