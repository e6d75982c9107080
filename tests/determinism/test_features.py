"""Each feature does something: the outcome with it is not the one without. Otherwise its cell would prove nothing."""

import random
from dataclasses import replace

import pytest
from result_checks import assert_does_something, count_conforming
from stress_helpers import FEATURES, combinations, engine, features

from holdfast.bench.determinism.features import STRUCTURED, combine
from holdfast.bench.determinism.stress import result_bits, run_alone


def test_all_features_are_listed() -> None:
    assert tuple(features("c", "fp32")) == FEATURES


@pytest.mark.parametrize("name", [name for name in FEATURES if name != "copied text"])
def test_a_feature_changes_the_outcome(name: str) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    assert_does_something(feature, run_alone(one, feature.probe()), run_alone(one, feature.without()))


def test_copied_text_is_looked_up_and_the_outcome_stays() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["copied text"]
    given, without = run_alone(one, feature.probe()), run_alone(one, feature.without())
    assert given.stats.looked_up > without.stats.looked_up == 0
    assert given.stats.accepted > 0
    assert result_bits(given) == result_bits(without)


def test_the_stop_text_begins_in_one_token_and_ends_in_another() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["stop text"]
    stop = feature.probe().params.stop_strings[0]
    result = run_alone(one, feature.probe())
    assert result.finish_reason == "stop"
    assert stop not in result.text
    whole = one.tokenizer.decode(result.token_ids)
    assert whole.startswith(result.text + stop)
    assert all(stop not in one.tokenizer.decode([token_id]) for token_id in result.token_ids)


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_complete_form_ends_the_answer_however_many_tokens_it_should_have(name: str) -> None:
    one, probe = engine("c", "fp32"), features("c", "fp32")[name].probe()
    longer = replace(probe, params=replace(probe.params, min_tokens=60))
    assert count_conforming(one, longer, run_alone(one, longer)) == 1 or name == "JSON object"


def test_combinations_are_valid_and_hold_every_feature() -> None:
    known = features("c", "fp32")
    drawn = combinations(known, 200)
    names = {name for feature in drawn for name in feature.name.split(" + ")}
    assert names == set(FEATURES) - {"scores only"}
    assert all(2 <= len(feature.name.split(" + ")) <= 6 for feature in drawn)
    assert drawn == combinations(known, 200)  # of one seed


def test_a_contradiction_is_never_drawn() -> None:
    known = features("c", "fp32")
    pair = (known["JSON schema"], known["regex"], known["echo"])
    for seed in range(20):
        assert "echo" in combine(random.Random(seed), pair).name
