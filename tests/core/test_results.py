"""Results: sums of stats, the weakest guarantee, empty deltas, logprobs that are decoded when read."""

import copy
import pickle
from dataclasses import fields, replace

import pytest

from holdfast.core.logprobs import TokenTexts
from holdfast.core.results import Choice, Delta, Result, Stats, Thought, decode_result, sum_stats, weakest
from holdfast.core.step_plan import TokenLogprob


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


def test_logprobs_are_decoded_when_they_are_read() -> None:
    logprobs = tuple(TokenLogprob(n, -0.5 * n, ((n, -0.5 * n), (9, -4.0))) for n in range(3))
    choice = Choice("abc", (0, 1, 2), "length", logprobs)
    result = Result((7,), (choice,), 0, "none", Stats())
    read: list[int] = []
    texts = TokenTexts(lambda token_id: read.append(token_id) or f"<{token_id}>")  # type: ignore[func-returns-value]
    decoded = decode_result(result, texts, prompt="x")
    assert not read and decoded.prompt == "x"
    assert decoded.logprobs is not None and decoded.logprobs is decoded.choices[0].logprobs
    assert [one.text for one in decoded.logprobs] == ["<0>", "<1>", "<2>"]  # type: ignore[attr-defined]
    assert decoded.choices == result.choices and decoded.outputs[0].cumulative_logprob == -1.5
    for again in (copy.deepcopy(decoded), pickle.loads(pickle.dumps(decode_result(result, texts)))):
        assert again.logprobs == logprobs and again.choices[0].text == "abc"
    assert replace(choice, text="d").logprobs == logprobs
    assert decode_result(replace(result, choices=(Choice("", (), "stop"),)), texts).logprobs is None
