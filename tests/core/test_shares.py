"""The max-min fair level, and what a token counts as."""

from typing import Any

import pytest

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.shares import MAX_COST, equal_level, prompt_cost, sampled_cost


@pytest.mark.parametrize(
    ("demands", "total", "level"),
    [
        ((), 9, 9),
        ((4,), 9, 9),
        ((4, 50), 9, 5),
        ((1, 1, 50), 9, 7),
        ((*(12,) * 11, 13), 12, 1),
        ((*(1,) * 12, 13), 12, 0),
    ],
)
def test_equal_level(demands: tuple[int, ...], total: int, level: int) -> None:
    assert equal_level(demands, total) == level


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({}, 1),
        ({"temperature": 1.0, "top_k": 50, "min_p": 0.1, "stop_token_ids": (7,)}, 1),
        ({"logprobs": 0}, 1),
        ({"logprobs": 1}, 2),
        ({"logprobs": 20}, 3),
        ({"presence_penalty": 0.5}, 2),
        ({"logit_bias": {5: 1.0}}, 2),
        ({"bad_words": [f"{at} b" for at in range(1024)]}, 3),
        ({"stop": ["x" * 400] * 16}, 3),
        (
            {
                "logprobs": 20,
                "presence_penalty": 0.5,
                "bad_words": [f"{at} b" for at in range(1024)],
                "logit_bias": dict.fromkeys(range(300), 1.0),
                "stop": ["x" * 400] * 16,
            },
            MAX_COST,
        ),
    ],
    ids=[
        *(
            "plain",
            "sampled",
            "logprob",
            "one alternative",
            "20 alternatives",
            "penalty",
            "bias",
            "bad words",
        ),
        *("stop strings", "everything"),
    ],
)
def test_sampled_cost_grows_with_what_is_asked(settings: dict[str, Any], cost: int) -> None:
    assert sampled_cost(SamplingParams(**settings)) == cost


def test_prompt_cost_grows_with_what_is_asked() -> None:
    assert prompt_cost(num_logprobs=None, is_pooled=False) == 1
    assert prompt_cost(num_logprobs=0, is_pooled=False) == 2
    assert prompt_cost(num_logprobs=20, is_pooled=False) == 4
    assert prompt_cost(num_logprobs=None, is_pooled=True) == 2
