"""A `SamplingParams` that exists is valid."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import pytest

from holdfast.core.params import MAX_LOGPROBS, MAX_STOP_CHARS, MAX_STOPS, MAX_TOKENS_LIMIT, SamplingParams
from holdfast.errors import InvalidRequest

BAD: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 10**5000, MAX_TOKENS_LIMIT + 1, 10**30, 1.0, "16", None, True, math.nan, []],
    "min_tokens": [-1, MAX_TOKENS_LIMIT + 1, 0.5, "0", None, False],
    "temperature": [-0.1, 10**400, 100.5, math.nan, math.inf, -math.inf, "1", None, True, 1j, [1.0]],
    "top_k": [-2, 1 << 31, 10**30, 0.0, "5", None, True],
    "top_p": [0.0, -0.1, 1.0001, math.nan, math.inf, "0.9", None, True],
    "min_p": [-0.1, 1.1, math.nan, math.inf, "0", None, False],
    "seed": [-1, 1 << 64, 10**30, 1.5, "7", True],
    "stop": [
        "",
        [""],
        ["a", ""],
        [1],
        3,
        None,
        ["a"] * (MAX_STOPS + 1),
        ["x" * (MAX_STOP_CHARS + 1)],
        [b"a"],
    ],
    "stop_token_ids": ["12", [-1], [1 << 31], [1.0], [True], 7, None, range(MAX_STOPS + 1), [10**30]],
    "ignore_eos": [1, 0, None, "yes"],
    "logprobs": [-1, MAX_LOGPROBS + 1, 1.0, True, "5", 10**30],
    "deterministic": [1, None, "true"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{n}")
        for name, values in BAD.items()
        for n, value in enumerate(values)
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name.removesuffix("s") if name == "stop" else name):
        SamplingParams(**{name: value})


def test_every_field_has_bad_values_above() -> None:
    assert {field.name for field in dataclasses.fields(SamplingParams)} == BAD.keys()


def test_contradictions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens \(9\) is larger than max_tokens \(8\)"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_an_endless_list_of_stops_is_refused_without_reading_it_all() -> None:
    def endless() -> Any:
        for taken in range(10**9):
            assert taken <= 10 * MAX_STOPS, "the whole list was read"
            yield taken

    with pytest.raises(InvalidRequest, match="at most"):
        SamplingParams(stop_token_ids=endless())
    with pytest.raises(InvalidRequest, match="at most"):
        SamplingParams(stop=map(str, endless()))


def test_a_message_does_not_repeat_a_huge_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(temperature="x" * 10**6)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_a_setting_is_kept_as_plain_data() -> None:
    params = SamplingParams(
        stop=["b", "a"],
        stop_token_ids=range(3),
        temperature=Fraction(1, 2),
        top_k=-1,
        min_tokens=2,
        max_tokens=2,
    )
    assert params.stop_strings == ("b", "a")
    assert params.stop_ids == (0, 1, 2)
    assert (params.temperature, type(params.temperature)) == (0.5, float)
    assert params.top_k == 0
    assert SamplingParams(stop="end").stop_strings == ("end",)


@pytest.mark.parametrize(
    "edge",
    [
        {"max_tokens": 1},
        {"max_tokens": MAX_TOKENS_LIMIT},
        {"temperature": 0},
        {"temperature": 100.0},
        {"top_p": 1e-9},
        {"min_p": 1},
        {"seed": (1 << 64) - 1},
        {"logprobs": MAX_LOGPROBS},
        {"stop": "x" * MAX_STOP_CHARS},
    ],
)
def test_the_edges_are_allowed(edge: dict[str, Any]) -> None:
    SamplingParams(**edge)


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-6).greedy


def test_it_is_frozen_and_hashable() -> None:
    params = SamplingParams(stop=["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_tokens = 5  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(stop=["a"]))
