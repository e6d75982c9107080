"""Each feature does something: the outcome with it is not the one without. Otherwise its cell would prove nothing."""

import random
from dataclasses import replace

import pytest
from pricking import FEATURES, combinations, engine, features
from proof import assert_does_something, count_in_form

from holdfast.bench.determinism.features import FORMS, combine
from holdfast.bench.determinism.stress import ask, outcome_of


def test_all_features_are_listed() -> None:
    assert tuple(features("c", "fp32")) == FEATURES


@pytest.mark.parametrize("name", [name for name in FEATURES if name != "copied text"])
def test_a_feature_changes_the_outcome(name: str) -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")[name]
    assert_does_something(feature, ask(one, feature.needle()), ask(one, feature.without()))


def test_copied_text_is_looked_up_and_the_outcome_stays() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["copied text"]
    given, without = ask(one, feature.needle()), ask(one, feature.without())
    assert given.stats.looked_up > without.stats.looked_up == 0
    assert given.stats.accepted > 0
    assert outcome_of(given) == outcome_of(without)


def test_the_stop_text_begins_in_one_token_and_ends_in_another() -> None:
    one, feature = engine("c", "fp32"), features("c", "fp32")["stop text"]
    stop = feature.needle().params.stop_strings[0]
    result = ask(one, feature.needle())
    assert result.finish_reason == "stop"
    assert stop not in result.text
    whole = one.tokenizer.decode(result.token_ids)
    assert whole.startswith(result.text + stop)
    assert all(stop not in one.tokenizer.decode([token_id]) for token_id in result.token_ids)


@pytest.mark.parametrize("name", FORMS)
def test_a_complete_form_ends_the_answer_however_many_tokens_it_should_have(name: str) -> None:
    one, needle = engine("c", "fp32"), features("c", "fp32")[name].needle()
    longer = replace(needle, params=replace(needle.params, min_tokens=60))
    assert count_in_form(one, longer, ask(one, longer)) == 1 or name == "JSON object"


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
