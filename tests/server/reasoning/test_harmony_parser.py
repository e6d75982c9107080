"""Harmony: channels, calls and malformed messages, however the text is split into pieces."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.reasoning.formats import HARMONY
from holdfast.server.reasoning.harmony import HarmonyParser
from holdfast.server.reasoning.token_pieces import Piece
from holdfast.server.tools.deltas import ParsedMessage, ToolCallIds, merge_deltas

_TOKENS = re.compile("(" + "|".join(map(re.escape, HARMONY.tokens)) + ")")
PROMPT = [Piece("assistant")]
ANALYSIS = "<|channel|>analysis<|message|>Hm."
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'


def pieces(text: str, size: int = 1000) -> list[Piece]:
    """Special tokens as controls, text in chunks of this size."""
    split: list[Piece] = []
    for part in _TOKENS.split(text):
        if part in HARMONY.tokens:
            split.append(Piece(part, control=True))
        else:
            split += [Piece(part[at : at + size]) for at in range(0, len(part), size)]
    return split


def parse(
    given: list[Piece], header: list[Piece] | None = None, **options: bool
) -> tuple[ParsedMessage, int]:
    parser = HarmonyParser(
        ["f", "g"], ToolCallIds(b""), header=PROMPT if header is None else header, **options
    )
    deltas = [delta for piece in given for delta in parser.feed([piece])]
    return merge_deltas([*deltas, *parser.finish()]), parser.num_reasoning_tokens


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (f"{ANALYSIS}<|end|>{FINAL}Hello", "Hm.", "Hello", []),
        ("<|channel|>final<|message|>Hello", None, "Hello", []),
        (f"{ANALYSIS}<|end|><|start|>assistant{CALL}", "Hm.", None, ["f"]),
        (
            f'{ANALYSIS}<|end|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{{"b": []}}',
            "Hm.",
            None,
            ["g"],
        ),
        (f"<|channel|>commentary<|message|>First.<|end|><|start|>assistant{CALL}", None, "First.", ["f"]),
        (
            f"{ANALYSIS}<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>{FINAL}Yes",
            "Hm.\nSo.",
            "Yes",
            [],
        ),
        (f"{CALL}<|call|><|start|>assistant{CALL.replace('.f', '.g')}", None, None, ["f", "g"]),
        (CALL.replace('{"a": 1}', "{broken"), None, CALL.replace('{"a": 1}', "{broken"), []),
        (CALL.replace('{"a": 1}', ""), None, CALL.replace('{"a": 1}', ""), []),
        (CALL.replace("functions.f", "browser.open"), None, CALL.replace("functions.f", "browser.open"), []),
        ("<|channel|>odd<|message|>Hello", None, "<|channel|>odd<|message|>Hello", []),
        ("Hello", None, "Hello", []),
        ("<|end|>Hello", None, "Hello", []),
        (f"{FINAL}a<|channel|>b<|message|>c", None, "a<|channel|>b<|message|>c", []),
        (f"{FINAL}a<|return|>b", None, "a\nb", []),
        (
            "<|channel|>final<|message|>a<|end|><|start|>user<|message|>b",
            None,
            "a\n<|start|>user<|message|>b",
            [],
        ),
        ("x" * 400, None, "x" * 400, []),
    ],
)
def test_parsed_message(text: str, reasoning: str | None, content: str | None, calls: list[str]) -> None:
    message, _ = parse(pieces(text))
    found = (message.reasoning, message.content, [call.name for call in message.calls])
    assert found == (reasoning, content, calls)
    assert parse(pieces(text, 1))[0] == message


def test_typed_markup_is_text() -> None:
    text = "Write <|end|> and <|channel|>."
    message, _ = parse([*pieces("<|channel|>final<|message|>"), Piece(text)])
    assert message.content == text


def test_prompt_decides_the_first_message() -> None:
    header = pieces("assistant<|channel|>final<|message|>So far,")
    assert parse([Piece(" so good")], header)[0].content == " so good"
    header = pieces("assistant<|channel|>analysis<|message|>")
    message, num_tokens = parse([*pieces("Hm.<|end|>"), *pieces(f"{FINAL}Yes")], header)
    assert (message.reasoning, message.content, num_tokens) == ("Hm.", "Yes", 2)


def test_forced_arguments_are_sent_as_they_arrive() -> None:
    parser = HarmonyParser(["f"], ToolCallIds(b""), header=PROMPT, is_forced=True)
    parts = [parser.feed([piece]) for piece in pieces(CALL, 4)]
    sent = [delta for part in parts for delta in part]
    assert len(sent) > 2 and not parser.finish()
    (call,) = merge_deltas(sent).calls
    assert (call.name, call.arguments) == ("f", '{"a": 1}')


def test_parallel_calls_are_dropped_on_request() -> None:
    text = f"{CALL}<|call|><|start|>assistant{CALL}"
    assert len(parse(pieces(text), parallel=False)[0].calls) == 1


FRAGMENTS = (
    *HARMONY.tokens,
    "analysis",
    "final",
    "commentary to=functions.f ",
    "json",
    '{"a": "<|end|>"}',
    "é ",
    "\n",
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.lists(st.integers(0, 90), max_size=6)
)
def test_result_does_not_depend_on_the_split(text: str, cuts: list[int]) -> None:
    whole = pieces(text)
    message, num_tokens = parse(whole)
    split: list[Piece] = []
    for piece in whole:
        edges = sorted({0, len(piece.text), *(cut for cut in cuts if cut < len(piece.text))})
        parts = [piece.text[start:stop] for start, stop in pairwise(edges)]
        is_whole = piece.control or len(parts) < 2
        split += [piece] if is_whole else [Piece(one, num_tokens=not at) for at, one in enumerate(parts)]
    assert parse(split) == (message, num_tokens)
