"""Deltas and messages in OpenAI's shape, and reproducible tool call ids."""

import pytest

from holdfast.server.tools.deltas import (
    ChoiceDelta,
    ContentDelta,
    ParsedMessage,
    ToolCall,
    ToolCallDelta,
    ToolCallIds,
    finish_reason,
    merge_deltas,
)


def test_deltas_merge_to_a_message() -> None:
    deltas: list[ChoiceDelta] = [
        ContentDelta("a"),
        ToolCallDelta(0, "", "id0", "f"),
        ToolCallDelta(0, '{"x"'),
        ToolCallDelta(0, ": 1}"),
        ToolCallDelta(1, "{}", "id1", "g"),
        ContentDelta(" b"),
    ]
    assert merge_deltas(deltas) == ParsedMessage(
        "a b", (ToolCall("id0", "f", '{"x": 1}'), ToolCall("id1", "g", "{}"))
    )


def test_content_is_null_only_with_calls() -> None:
    assert merge_deltas([]) == ParsedMessage("")
    call = ToolCallDelta(0, "{}", "id", "f")
    assert merge_deltas([call]) == ParsedMessage(None, (ToolCall("id", "f", "{}"),))
    assert merge_deltas([ContentDelta("x"), call]).content == "x"


@pytest.mark.parametrize(
    ("reason", "num_calls", "expected"),
    [("stop", 0, "stop"), ("stop", 2, "tool_calls"), ("length", 1, "length"), ("abort", 1, "abort")],
)
def test_finish_reasons(reason: str, num_calls: int, expected: str) -> None:
    assert finish_reason(reason, num_calls) == expected


def test_call_ids_depend_on_request_and_index() -> None:
    made = ToolCallIds(b"key").make(0, "f")
    assert made == ToolCallIds(b"key").make(0, "f") == "call_83c8d55748df9d4d59ea8046"
    others = [
        ToolCallIds(b"kez").make(0, "f"),
        ToolCallIds(b"key", 1).make(0, "f"),
        ToolCallIds(b"key").make(1, "f"),
    ]
    assert len({made, *others, ToolCallIds(b"key").make(0, "g")}) == 5
    short = ToolCallIds(b"key", short=True).make(0, "f")
    assert len(short) == 9 and short.isalnum()
