"""A `SamplingParams` that exists is valid."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import pytest

from holdfast.core.sampling_params import (
    MAX_BAD_CHARS,
    MAX_BAD_WORDS,
    MAX_BIASED,
    MAX_CHOICES,
    MAX_LISTED_IDS,
    MAX_LOGPROBS,
    MAX_NAMED_IDS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOKEN_ID,
    MAX_TOKENS_LIMIT,
    SamplingParams,
)
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest

BAD: dict[str, list[Any]] = {
    "think": [0, 1, None, "yes"],
    "forced_thoughts": [3, {-1: [1]}, {"a": [1]}, {0: 5}, {0: [-1]}, [(1,)], {True: [1]}],
    "max_tokens": [0, -2, -1.0, 10**5000, MAX_TOKENS_LIMIT + 1, 10**30, 1.0, "16", True, math.nan, []],
    "min_tokens": [-1, MAX_TOKENS_LIMIT + 1, 0.5, "0", None, False],
    "temperature": [-0.1, 10**400, 100.5, math.nan, math.inf, -math.inf, "1", None, True, 1j, [1.0]],
    "top_k": [-2, 0.01, 1 << 31, 1 << 64, 10**30, 0.0, "5", None, True],
    "top_p": [0.0, -0.1, 1.0001, math.nan, math.inf, "0.9", None, True],
    "min_p": [-0.1, 1.1, math.nan, math.inf, "0", None, False],
    "seed": [-1, 1 << 64, 10**30, 1.5, "7", True],
    "stop": ["\udcff", "", ["a", ""], [1], 3, ["a"] * (MAX_STOPS + 1), ["x" * (MAX_STOP_CHARS + 1)]],
    "stop_token_ids": ["12", [-1], [1 << 31], [1.0], [True], 7, range(MAX_STOPS + 1), [10**30]],
    "ignore_eos": [1, 0, None, "yes"],
    "logprobs": [-1, MAX_LOGPROBS + 1, 1.0, True, "5", 10**30],
    "logprob_token_ids": ["12", [-1], [1.0], 7, range(MAX_NAMED_IDS + 1), [5]],  # the last without logprobs
    "deterministic": [1, "true"],
    "n": [0, -1, MAX_CHOICES + 1, 1.0, "2", None, True],
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf, "1", None, True],
    "frequency_penalty": [-2.1, 2.1, 1e308, 10**400, math.nan, "1", None, False],
    "repetition_penalty": [0.0, 0.001, -1.0, 100.5, math.nan, math.inf, "1", None, True],
    "logit_bias": [
        *("5", 7, [(5, 1.0, 2.0)], {-1: 1.0}, {MAX_TOKEN_ID + 1: 1.0}, {"5": 1.0}, {True: 1.0}, {5: 100.5}),
        *({5: -100.5}, {5: math.nan}, {5: None}, dict.fromkeys(range(MAX_BIASED + 1), 0.0)),
    ],
    "allowed_token_ids": ["12", [], [-1], [MAX_TOKEN_ID + 1], [1.0], [True], 7, range(MAX_LISTED_IDS + 1)],
    "bad_token_ids": ["12", [-1], [MAX_TOKEN_ID + 1], [1.0], [None], 7, None, range(MAX_LISTED_IDS + 1)],
    "bad_words": [
        *("", [""], [1], ["\ud800"], ["a"] * (MAX_BAD_WORDS + 1), ["x" * (MAX_STOP_CHARS + 1)]),
        ["x" * (MAX_BAD_CHARS // 16 + 1)] * 16,
    ],
    "prompt_logprobs": [-1, MAX_LOGPROBS + 1, 1.0, True, "5"],
    "echo": [1, None, "true"],
    "skip_special_tokens": [1, None, "true"],
    "include_stop_str_in_output": [0, None, "false"],
    "structured": ["json", {"regex": "a"}, True, [StructuredOutput(regex="a")]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{n}")
        for name, values in BAD.items()
        for n, value in enumerate(values)
    ],
)
def test_invalid_value_is_refused_by_field_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name.removesuffix("s") if name == "stop" else name):
        SamplingParams(**{name: value})


def test_none_is_an_empty_list_as_in_vllm() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, bad_words=None, logit_bias=None)
    assert params == SamplingParams()


def test_every_field_has_bad_values_above() -> None:
    assert {field.name for field in dataclasses.fields(SamplingParams)} == BAD.keys()


def test_contradicting_fields_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens \(9\) is larger than max_tokens \(8\)"):
        SamplingParams(min_tokens=9, max_tokens=8)
    with pytest.raises(InvalidRequest, match="leave ignore_eos out"):
        SamplingParams(structured=StructuredOutput(regex="a"), ignore_eos=True)


def test_max_tokens_zero_needs_prompt_logprobs_or_echo() -> None:
    with pytest.raises(InvalidRequest, match="ask for at least one token, or for prompt_logprobs or echo"):
        SamplingParams(max_tokens=0)
    with pytest.raises(InvalidRequest, match="max_tokens is 0"):
        SamplingParams(max_tokens=0, logprobs=3)
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    assert SamplingParams(max_tokens=0, echo=True).max_tokens == 0


def test_endless_iterables_are_refused_without_reading_all() -> None:
    def endless() -> Any:
        for taken in range(10**9):
            assert taken <= 10 * MAX_STOPS, "the whole list was read"
            yield taken

    with pytest.raises(InvalidRequest, match="at most"):
        SamplingParams(stop_token_ids=endless())
    with pytest.raises(InvalidRequest, match="at most"):
        SamplingParams(stop=map(str, endless()))


def test_logit_bias_is_sorted_by_id() -> None:
    """However it was given; of two biases of one token the last counts."""
    expected = ((3, -1.0), (8, 2.5))
    assert SamplingParams(logit_bias={8: 2.5, 3: -1}).biases == expected
    assert SamplingParams(logit_bias=[(8, 2.5), [3, -1]]).biases == expected  # type: ignore[list-item]
    assert SamplingParams(logit_bias=iter(expected)).biases == expected
    assert SamplingParams().biases == ()


def test_id_lists_keep_their_order() -> None:
    params = SamplingParams(allowed_token_ids=iter([5, 2]), bad_token_ids={7}, bad_words="no")
    assert (params.allowed_ids, params.bad_ids, params.bad_texts) == ((5, 2), (7,), ("no",))
    plain = SamplingParams()
    assert (plain.allowed_ids, plain.bad_ids, plain.bad_texts) == (None, (), ())


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_penalises_is_true_for_each_penalty(name: str) -> None:
    assert not SamplingParams().penalises
    assert SamplingParams(**{name: 0.5}).penalises  # type: ignore[arg-type]


def test_error_message_shortens_a_huge_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(temperature="x" * 10**6)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_values_are_normalized_to_plain_data() -> None:
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
        {"max_tokens": MAX_TOKENS_LIMIT},
        {"temperature": 100.0},
        {"temperature": 5e-324},
        {"top_p": 5e-324},
        {"seed": (1 << 64) - 1},
        {"logprobs": MAX_LOGPROBS},
        {"stop": "x" * MAX_STOP_CHARS},
        {"n": MAX_CHOICES},
        {"presence_penalty": -2, "frequency_penalty": 2.0},
        {"repetition_penalty": 100},
        {"logit_bias": {0: -100, MAX_TOKEN_ID: 100}},
        {"allowed_token_ids": range(MAX_LISTED_IDS)},
        {"bad_words": ["a"] * MAX_BAD_WORDS},
        {"bad_words": ["x" * (MAX_BAD_CHARS // 16)] * 16},
    ],
)
def test_limits_are_inclusive(edge: dict[str, Any]) -> None:
    SamplingParams(**edge)


def test_params_are_frozen_and_hashable() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, structured=StructuredOutput(choice=["x"]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_tokens = 5  # type: ignore[misc]
    again = SamplingParams(stop=["a"], logit_bias={1: 2.0}, structured=StructuredOutput(choice=["x"]))
    assert (hash(params), params) == (hash(again), again)
