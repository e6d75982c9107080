"""Thinking between tags: what is thinking, content and calls, however the text is split."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.reasoning.formats import QWEN3
from holdfast.server.reasoning.tags import TagParser, TagState
from holdfast.server.reasoning.token_pieces import Piece
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import (
    ParsedMessage,
    PlainTextParser,
    ReasoningDelta,
    ToolCallIds,
    merge_deltas,
)
from holdfast.server.tools.formats import HERMES

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
MAY_THINK, THINKING, ANSWERING = TagState.MAY_THINK, TagState.THINKING, TagState.ANSWERING


def parse(chunks: list[str], state: TagState = MAY_THINK) -> tuple[ParsedMessage, int]:
    parser = TagParser(QWEN3, state, AutoToolParser(HERMES, ["f"], ToolCallIds(b"")))
    deltas = [delta for chunk in chunks for delta in parser.feed([Piece(chunk)])]
    return merge_deltas([*deltas, *parser.finish()]), parser.num_reasoning_tokens


@pytest.mark.parametrize(
    ("state", "text", "reasoning", "content", "num_calls"),
    [
        (MAY_THINK, "<think>\nHm.\n\nYes.\n</think>\n\nHello", "Hm.\n\nYes.", "Hello", 0),
        (MAY_THINK, "\n<think>\n\n</think>\n\nHello", None, "Hello", 0),
        (MAY_THINK, "Hello <think>no</think>", None, "Hello <think>no</think>", 0),
        (MAY_THINK, "<thin air", None, "<thin air", 0),
        (MAY_THINK, "<think>Hm. </thin", "Hm. </thin", "", 0),
        (MAY_THINK, f"<think>a {CALL}</think>{CALL}", f"a {CALL}", None, 1),
        (MAY_THINK, f"<think>a</think>Well.\n{CALL}\n{CALL}", "a", "Well.", 2),
        (MAY_THINK, '<think>a</think>{"b": "</think>"}', "a", '{"b": "</think>"}', 0),
        (
            MAY_THINK,
            "<think>a</think><tool_call>{broken</tool_call>",
            "a",
            "<tool_call>{broken</tool_call>",
            0,
        ),
        (MAY_THINK, "", None, "", 0),
        (THINKING, "Hm.\n</think>\n\nHello", "Hm.", "Hello", 0),
        (THINKING, "Hm. Is it </think", "Hm. Is it </think", "", 0),
        (ANSWERING, "Hello </think>", None, "Hello </think>", 0),
    ],
)
def test_parsed_message(
    state: TagState, text: str, reasoning: str | None, content: str | None, num_calls: int
) -> None:
    message, _ = parse([text], state)
    assert (message.reasoning, message.content, len(message.calls)) == (reasoning, content, num_calls)
    assert parse(list(text), state)[0] == message


FRAGMENTS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</th", "ink>", " ", "\n\n", "é", "a")
JSON = '{"name": "f", "arguments": {"x": "</think>"}}'


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from((*FRAGMENTS, JSON)), max_size=12).map("".join),
    st.lists(st.integers(0, 120), max_size=8),
    st.sampled_from((MAY_THINK, THINKING, ANSWERING)),
)
def test_result_does_not_depend_on_the_split(text: str, cuts: list[int], state: TagState) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:stop] for start, stop in pairwise(edges)]
    message, _ = parse([text], state)
    assert parse(chunks, state)[0] == message
    assert parse(list(text), state)[0] == message


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.sampled_from((MAY_THINK, THINKING, ANSWERING)),
)
def test_only_tags_and_white_space_are_dropped(text: str, state: TagState) -> None:
    parser = TagParser(QWEN3, state, PlainTextParser())
    message = merge_deltas([*parser.feed([Piece(text)]), *parser.finish()])
    reasoning, content = message.reasoning or "", message.content or ""
    opening = "" if state is THINKING else "<think>"
    possible = (content, opening + reasoning, f"{opening}{reasoning}</think>{content}")
    assert "".join(text.split()) in {"".join(one.split()) for one in possible}


def test_no_half_tag_is_sent() -> None:
    parser = TagParser(QWEN3, MAY_THINK, AutoToolParser(HERMES, ["f"], ToolCallIds(b"")))
    sent = [delta for char in "<think>Hm. </thin" for delta in parser.feed([Piece(char)])]
    assert all(isinstance(one, ReasoningDelta) for one in sent)
    assert merge_deltas(sent).reasoning == "Hm."


def test_tokens_of_thinking_are_counted_with_tags() -> None:
    chunks = ["<think>", "\n", "Hm", ".", "</think>", "\n\n", "Hello"]
    assert parse(chunks)[1] == 5
    assert parse(["", *chunks])[1] == 6
    assert parse(chunks[1:], THINKING)[1] == 4
    assert parse(["<", "b>", "bold"])[1] == 0
