"""Answers in OpenAI's shape, and ids that are the same twice."""

from typing import Any

import pytest

from holdfast.server.tools.calls import (
    CallIds,
    CallPiece,
    Content,
    Delta,
    PlainReader,
    Reply,
    ToolCall,
    add_up,
    finish_reason,
    join_contents,
    read_whole,
)


def test_deltas_add_up() -> None:
    deltas: list[Delta] = [
        Content("a"),
        CallPiece(0, "", "id0", "f"),
        CallPiece(0, '{"x"'),
        CallPiece(0, ": 1}"),
        CallPiece(1, "{}", "id1", "g"),
        Content(" b"),
    ]
    assert add_up(deltas) == Reply("a b", (ToolCall("id0", "f", '{"x": 1}'), ToolCall("id1", "g", "{}")))


def test_content_is_null_only_beside_calls() -> None:
    assert add_up([]).body() == {"role": "assistant", "content": "", "refusal": None}
    call = ToolCall("id", "f", "{}")
    assert add_up([CallPiece(0, "{}", "id", "f")]).body() == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "id", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert Reply("x", (call,)).body()["content"] == "x"


def test_pieces_on_the_wire() -> None:
    assert Content("x").body() == {"content": "x"}
    assert CallPiece(2, "{}").body() == {"tool_calls": [{"index": 2, "function": {"arguments": "{}"}}]}
    (first,) = CallPiece(2, "", "id", "f").body()["tool_calls"]
    assert first == {"index": 2, "id": "id", "type": "function", "function": {"name": "f", "arguments": ""}}


def test_openai_s_own_types_take_the_bodies() -> None:
    chat: Any = pytest.importorskip("openai.types.chat")
    reply = Reply(None, (ToolCall("id", "f", "{}"),))
    message = chat.ChatCompletionMessage.model_validate(reply.body(), strict=True)
    assert message.tool_calls[0].function.name == "f"
    delta_type = pytest.importorskip("openai.types.chat.chat_completion_chunk").ChoiceDelta
    for piece in (Content("x"), CallPiece(0, "{", "id", "f"), CallPiece(0, "}")):
        delta_type.model_validate(piece.body(), strict=True)


def test_contents_that_follow_each_other_are_joined() -> None:
    call = CallPiece(0, "{}", "id", "f")
    assert join_contents([Content("a"), Content("b"), call, Content("c")]) == [
        Content("ab"),
        call,
        Content("c"),
    ]
    assert join_contents([]) == []


def test_a_plain_answer_is_its_text() -> None:
    assert read_whole(PlainReader(), "<tool_call>{}") == Reply("<tool_call>{}")
    assert PlainReader().feed("") == []


@pytest.mark.parametrize(
    ("reason", "num_calls", "told"),
    [("stop", 0, "stop"), ("stop", 2, "tool_calls"), ("length", 1, "length"), ("abort", 1, "abort")],
)
def test_finish_reasons(reason: str, num_calls: int, told: str) -> None:
    assert finish_reason(reason, num_calls) == told


def test_ids_are_a_function_of_the_request_and_the_place() -> None:
    made = CallIds(b"key").make(0, "f")
    assert made == CallIds(b"key").make(0, "f") == "call_83c8d55748df9d4d59ea8046"
    others = [CallIds(b"kez").make(0, "f"), CallIds(b"key", 1).make(0, "f"), CallIds(b"key").make(1, "f")]
    assert len({made, *others, CallIds(b"key").make(0, "g")}) == 5
    short = CallIds(b"key", short=True).make(0, "f")
    assert len(short) == 9 and short.isalnum()
