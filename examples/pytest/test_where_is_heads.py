"""Run with `pytest --holdfast`. The recorded answers are in __holdfast__."""

from typing import Any

import pytest
from where_is_heads import is_heads_up


@pytest.mark.parametrize(("event", "expected"), [("Bob tosses it over.", False), ("Ann looks at it.", True)])
def test_the_model_follows_the_coin(holdfast: Any, event: str, expected: bool) -> None:
    assert is_heads_up(event, holdfast.base_url) is expected


def test_a_stream_is_recorded_like_any_answer(holdfast: Any) -> None:
    parts = holdfast.client.completions.create(
        model="any", prompt="The coin shows tails. Is it heads up? A:", max_tokens=8, stream=True
    )
    assert "".join(part.choices[0].text for part in parts if part.choices)
