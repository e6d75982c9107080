"""The first difference between two receipts is located and named."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import SamplingParams
from holdfast.receipts.compare import compare
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import LogprobBits, PromptLogprobBits, Receipt
from support.receipts import receipt_of

BASE = parse_receipt(receipt_of(SamplingParams(max_tokens=16, n=2, deterministic=True), (4, 5, 6), (7, 8)))


def with_choice(index: int, **changes: Any) -> Receipt:
    choices = list(BASE.choices)
    choices[index] = replace(choices[index], **changes)
    return replace(BASE, choices=tuple(choices))


def bits(index: int, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> LogprobBits:
    before = BASE.choices[index].logprobs
    assert before is not None
    return replace(before, bits=change(before.bits))


def scored(first: int, *bits: str, digest: str = "") -> Receipt:
    return replace(BASE, prompt_logprobs=PromptLogprobBits(first, bits, digest))


@pytest.mark.parametrize(
    ("expected", "got", "choice", "position", "what"),
    [
        (BASE, with_choice(1, token_ids=(7, 9)), 1, 1, "expected token 8 '8', got 9 '9'"),
        (BASE, with_choice(1, token_ids=(7,)), 1, 1, "expected 2 tokens, got 1"),
        (BASE, with_choice(0, token_ids=(4, 5, 6, 7)), 0, 3, "expected 3 tokens, got 4"),
        (BASE, with_choice(0, finish_reason="stop"), 0, None, "expected the end to be 'length', got 'stop'"),
        (
            BASE,
            with_choice(0, logprobs=bits(0, lambda old: (old[0], "00000000", old[2]))),
            *(0, 1, "the same token 5 '5', but the bits of its logprob differ: expected bfd55555, got 00000000"),
        ),
        (
            BASE,
            with_choice(1, logprobs=LogprobBits(bits(1, tuple).bits, "0" * 64)),
            *(1, None, "the logprobs of the chosen tokens agree, the top logprobs differ"),
        ),
        (BASE, replace(BASE, choices=BASE.choices[:1]), 1, None, "2 choices expected, got 1"),
        (scored(1, "a", "b"), BASE, 0, None, "expected some logprobs of the prompt's tokens, got none"),
        (BASE, scored(1, "a", "b"), 0, None, "expected no logprobs of the prompt's tokens, got some"),
        (scored(1, "a", "b"), scored(2, "b"), 0, None, "expected the prompt's logprobs to begin at token 1, got 2"),
        (
            scored(2, "b", "c"),
            scored(2, "b", "x"),
            *(0, None, "the bits of the logprob of the prompt's token 3 differ: expected c, got x"),
        ),
        (scored(1, "a", "b"), scored(1, "a"), 0, None, "expected 2 logprobs of the prompt's tokens, got 1"),
        (scored(1, "a"), scored(1, "a", "b"), 0, None, "expected 1 logprobs of the prompt's tokens, got 2"),
        (
            scored(1, "a", digest="0"),
            scored(1, "a", digest="1"),
            *(0, None, "the logprobs of the prompt's tokens agree, the top logprobs differ"),
        ),
    ],
)  # fmt: skip
def test_first_difference(
    expected: Receipt, got: Receipt, choice: int, position: int | None, what: str
) -> None:
    found = compare(expected, got, str)
    assert found is not None
    assert (found.choice, found.position, found.what) == (choice, position, what)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (BASE, BASE),
        (BASE, replace(BASE, mode="certified", counts={}, seed_text="99")),
        (with_choice(1, logprobs=None), BASE),  # an ordinary request that did not ask for them
        (BASE, with_choice(1, logprobs=None)),
    ],
)
def test_no_difference(expected: Receipt, got: Receipt) -> None:
    assert compare(expected, got, str) is None
