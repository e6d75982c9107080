"""Calls found in free text: independent of chunking, nothing lost or repeated, in linear time."""

import itertools
import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.tools import auto_parser
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import (
    ContentDelta,
    ParsedMessage,
    ToolCallDelta,
    ToolCallIds,
    merge_deltas,
)
from holdfast.server.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from holdfast.server.tools.json_scanner import JsonScanner
from support.tool_parsing import parse_text

NAMES = ("f", "get_weather")
FORMATS = [HERMES, LLAMA3, MISTRAL]
F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name": "get_weather", "parameters": {"city": "<tool_call>{\\"x\\"} [TOOL_CALLS] </tool_call>"}}'
F_CALL = ("f", '{"a": 1}')
G_CALL = ("get_weather", '{"city": "<tool_call>{\\"x\\"} [TOOL_CALLS] </tool_call>"}')


def make_parser(tool_format: ToolFormat = HERMES, *, parallel: bool = True) -> AutoToolParser:
    return AutoToolParser(tool_format, NAMES, ToolCallIds(b"key"), parallel=parallel)


def read(text: str, tool_format: ToolFormat = HERMES, *, parallel: bool = True) -> ParsedMessage:
    return parse_text(make_parser(tool_format, parallel=parallel), text)


def read_chunks(chunks: Sequence[str], tool_format: ToolFormat = HERMES) -> ParsedMessage:
    parser = make_parser(tool_format)
    fed = [delta for chunk in chunks for delta in parser.feed(chunk)]
    return merge_deltas([*fed, *parser.finish()])


def content_and_calls(message: ParsedMessage) -> tuple[str | None, list[tuple[str, str]]]:
    return message.content, [(call.name, call.arguments) for call in message.calls]


CASES = [
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", None, [F_CALL]),
    (HERMES, f"Let me see.\n\n<tool_call>{G}</tool_call>\n", "Let me see.", [G_CALL]),
    (HERMES, f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>", None, [F_CALL, G_CALL]),
    (HERMES, f"a <tool_call>{F}</tool_call> b <tool_call>{G}</tool_call> c ", "a b c", [F_CALL, G_CALL]),
    (HERMES, f"a\u00a0<tool_call>{F}", "a\u00a0", [F_CALL]),
    (HERMES, f"<tool_call>{F}", None, [F_CALL]),
    (HERMES, f"<tool_call>{F}\n<tool_", "<tool_", [F_CALL]),
    (HERMES, f"<tool_call>{F}<tool_call>{G}", None, [F_CALL, G_CALL]),
    (HERMES, f"<tool_call>[{F}, {G}]</tool_call>", None, [F_CALL, G_CALL]),
    (HERMES, f"<tool_call><tool_call>{F}</tool_call>", "<tool_call>", [F_CALL]),
    (HERMES, f'<tool_call>{{"name": <tool_call>{F}</tool_call>', '<tool_call>{"name":', [F_CALL]),
    (HERMES, f"{F}\n{G}", None, [F_CALL, G_CALL]),
    (LLAMA3, F, None, [F_CALL]),
    (LLAMA3, f"\n {F}; {G}", None, [F_CALL, G_CALL]),
    (LLAMA3, f"<|python_tag|>{F}", None, [F_CALL]),
    (LLAMA3, f"Well <|python_tag|>{F}", "Well", [F_CALL]),
    (LLAMA3, f"{F} and that is it", " and that is it", [F_CALL]),
    (LLAMA3, f"{F}; no", "; no", [F_CALL]),
    (LLAMA3, f"It is {F}", f"It is {F}", []),
    (MISTRAL, f"[TOOL_CALLS][{F}, {G}]", None, [F_CALL, G_CALL]),
    (MISTRAL, f"[{F}]", None, [F_CALL]),
    (MISTRAL, f"[TOOL_CALLS][[TOOL_CALLS][{F}]", "[TOOL_CALLS][", [F_CALL]),
]
NO_CALLS = [
    "",
    "Hello",
    "<tool_call>",
    "<tool_call>{",
    "<tool_call></tool_call>",
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "\\u12"}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 200 + "1" + "}" * 200 + "}</tool_call>",
    f"<tool_call>{F} oops</tool_call>",
    f"<tool_call>[{F}, 1]</tool_call>",
    '{"answer": 42, "name": "f", "arguments": {}}',
    '{"name": "Alice", "arguments": {}}',
    "{",
    "<|python_tag|>print(1)",
    "lone \ud800 surrogate <tool_call>{\ud800",
]


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), CASES)
def test_calls_and_content(
    tool_format: ToolFormat, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    message = read(text, tool_format)
    assert content_and_calls(message) == (content, calls)
    assert read_chunks(list(text), tool_format) == message
    for cut in range(1, len(text)):
        assert read_chunks([text[:cut], text[cut:]], tool_format) == message


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda one: str(one.name))
@pytest.mark.parametrize("text", NO_CALLS, ids=range(len(NO_CALLS)))
def test_text_that_is_no_call_is_content(tool_format: ToolFormat, text: str) -> None:
    assert content_and_calls(read(text, tool_format)) == (text, [])
    assert content_and_calls(read_chunks(list(text), tool_format)) == (text, [])


MARKERS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<", "<tool", "_call>", "</"]
WRITTEN = [F, G, f"[{F}]", '{"name": "f", "arguments": {', "name", "1", "x", "é"]
FRAGMENTS = st.lists(st.sampled_from([*MARKERS, *WRITTEN, *'[]{}":,;\\ \n']), max_size=12).map("".join)


@settings(deadline=None)
@given(FRAGMENTS, st.lists(st.integers(0, 200), max_size=8), st.sampled_from(FORMATS))
def test_auto_parser_is_independent_of_chunking(
    text: str, splits: list[int], tool_format: ToolFormat
) -> None:
    whole = read(text, tool_format)
    places = sorted({0, len(text), *(cut for cut in splits if cut < len(text))})
    chunks = [text[begin:end] for begin, end in itertools.pairwise(places)]
    assert read_chunks(chunks, tool_format) == read_chunks(list(text), tool_format) == whole
    if not whole.calls:
        assert whole.content == text


PLAIN = st.text("ab .,\n<>/_tool", max_size=12).filter(lambda text: "<tool_call>" not in text)
OBJECTS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)
CALLS = st.tuples(st.sampled_from(NAMES), OBJECTS.map(json.dumps))


@settings(deadline=None)
@given(PLAIN, st.lists(st.tuples(CALLS, PLAIN), min_size=1, max_size=4))
def test_no_text_is_lost_or_repeated(first: str, rest: list[tuple[tuple[str, str], str]]) -> None:
    text = marked = first
    for (name, arguments), after in rest:
        text += f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>{after}'
        marked += f"\0{after}"
    message = read(text)
    assert [(call.name, call.arguments) for call in message.calls] == [call for call, _ in rest]
    assert (message.content or "") == re.sub("[ \n]*\0", "", marked).rstrip(" \n")


def test_content_is_emitted_at_once() -> None:
    parser = make_parser()
    assert parser.feed("Hello") == [ContentDelta("Hello")]
    assert parser.feed(" ") == []  # a call may follow
    assert parser.feed("you <") == [ContentDelta(" you")]
    assert parser.feed("b>") == [ContentDelta(" <b>")]
    assert parser.feed(" <tool_") == []
    assert parser.feed(f"call>{F}</tool_call") == []
    (call,) = parser.feed(">")
    assert isinstance(call, ToolCallDelta) and (call.index, call.name, call.arguments) == (0, "f", '{"a": 1}')
    assert parser.feed("\n") == parser.finish() == []


@pytest.mark.parametrize("text", [f"<tool_call>{F}</tool_call> <tool_call>{G}</tool_call>", f"[{F},{G}]"])
def test_only_one_call_without_parallel_tool_calls(text: str) -> None:
    assert content_and_calls(read(text, parallel=False)) == (None, [F_CALL])


def test_deltas_have_openais_shape() -> None:
    first, second = (delta.body()["tool_calls"][0] for delta in make_parser().feed(f"[{F}, {G}]"))
    function = {"name": F_CALL[0], "arguments": F_CALL[1]}
    assert first == {"index": 0, "id": first["id"], "type": "function", "function": function}
    assert second["index"] == 1 and second["id"] != first["id"]


HOSTILE = [
    '<tool_call>{"' * 8000,
    '<tool_call>{"a":"\\"' * 5000,
    '<tool_call>{"a":["' * 5000,
    '<tool_call>{":":":",' * 5000,
    "<tool_call>" * 9000,
    '<tool_call>{"name":"x","arguments":{"a":"' * 3000,
    f"<tool_call>{F}" * 2000,
    f"<tool_call>{F}\n</tool_cal" * 2000,
    "[TOOL_CALLS][" * 8000,
    "{" * 100_000,
    '[{"name":"f","arguments":{"a":"' + "x" * 100_000,
    " " * 100_000,
    "\n<tool_call>" + " " * 100_000 + "x",
    f"<tool_call>{F}" + " " * 100_000 + "x",
]


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda one: str(one.name))
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_parsing_takes_linear_time(
    monkeypatch: pytest.MonkeyPatch, tool_format: ToolFormat, text: str
) -> None:
    """Counts the characters that are scanned, including those that are scanned again."""
    looked_at = 0

    class Counting(JsonScanner):
        def feed(self, text: str, start: int = 0) -> int:
            nonlocal looked_at
            end = super().feed(text, start)
            looked_at += end - start + 1
            return end

    class Capture(auto_parser._Capture):
        def text(self) -> str:
            nonlocal looked_at
            looked_at += len(super().text())
            return super().text()

    monkeypatch.setattr(auto_parser, "JsonScanner", Counting)
    monkeypatch.setattr(auto_parser, "_Capture", Capture)
    message = read(text, tool_format)
    assert looked_at <= 5 * len(text)
    if not message.calls:
        assert message.content == text
