"""Results: sums of stats, the weakest guarantee, empty deltas."""

from dataclasses import fields

import pytest

from holdfast.core.results import Delta, Stats, Thought, sum_stats, weakest


def test_sum_stats_adds_every_field() -> None:
    names = [one.name for one in fields(Stats)]
    first = Stats(**{name: number for number, name in enumerate(names)})
    second = Stats(**dict.fromkeys(names, 100))
    assert sum_stats([first, second]) == Stats(**{name: 100 + n for n, name in enumerate(names)})
    assert sum_stats([]) == Stats()


def test_weakest_guarantee_holds_for_all() -> None:
    assert weakest(["certified", "verified", "certified"]) == "verified"
    assert weakest(["certified", "none", "verified"]) == "none"
    assert weakest(["certified"]) == "certified"
    assert weakest([]) == "none"


@pytest.mark.parametrize(
    "delta",
    [
        Delta("a"),
        Delta(token_ids=(5,)),
        Delta(finish_reason="stop"),
        Delta(thoughts=(Thought(0, 3, "", ()),)),
    ],
)
def test_delta_with_anything_to_show_is_not_empty(delta: Delta) -> None:
    assert not delta.is_empty and Delta(index=2).is_empty
