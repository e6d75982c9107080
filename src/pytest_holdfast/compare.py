"""What differs between the answers of a test and those that were recorded, for people to read.

The request comes first, then the engine and the model, then the answer: what changed explains what
comes after it.
"""

import difflib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.receipts.compare import compare, compare_engines, compare_requests
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import Receipt
from pytest_holdfast.server import Exchange

TokenText = Callable[[int], str]


def describe_differences(
    recorded: Sequence[Exchange], found: Sequence[Exchange], token_text: TokenText
) -> tuple[list[str], list[str]]:
    """Return why the test fails, and what changed without changing an answer."""
    lines: list[str] = []
    notes: list[str] = []
    for number, (old, new) in enumerate(_pairs(recorded, found), 1):
        if old is None or new is None:
            lines.append(
                f"answer {number} was {'not recorded' if old is None else 'recorded, but not asked for now'}:"
            )
            lines += _indent(_pretty((old or new or {})["request"]))
            continue
        one, other = parse_receipt(old["receipt"]), parse_receipt(new["receipt"])
        changed = [*_request_lines(old, new, one, other), *_answer_lines(old, new, one, other, token_text)]
        engines = compare_engines(one, other)
        if changed:
            lines.append(f"answer {number} is not the recorded one:")
            if engines:
                lines.append("    the engine or the model changed, so its answers may:")
                lines += _indent(_indent(engines))
            lines += _indent(changed)
        elif engines:
            notes.append(f"the engine or the model changed, this answer did not: {'; '.join(engines)}")
    return lines, notes


def _pairs(
    recorded: Sequence[Exchange], found: Sequence[Exchange]
) -> Iterator[tuple[Exchange | None, Exchange | None]]:
    """Yield recorded and new answers: those to the same request, whose order may differ, then the others."""
    left, others = list(recorded), []
    for new in found:
        same = [one for one in left if (one["path"], one["request"]) == (new["path"], new["request"])]
        if same:
            left.remove(same[0])
            yield same[0], new
        else:
            others.append(new)
    for at in range(max(len(left), len(others))):
        yield left[at] if at < len(left) else None, others[at] if at < len(others) else None


def _request_lines(old: Exchange, new: Exchange, one: Receipt, other: Receipt) -> Iterator[str]:
    before, now = ({"path": each["path"], **each["request"]} for each in (old, new))
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            yield f"the request's {name} changed:"
            yield from _indent(_diff(_pretty(before.get(name)), _pretty(now.get(name))))
    if before == now and (changed := compare_requests(one, other)):
        yield "the same request is read in another way (recorded, now):"
        yield from _indent(changed)


def _answer_lines(
    old: Exchange, new: Exchange, one: Receipt, other: Receipt, token_text: TokenText
) -> Iterator[str]:
    if old["texts"] != new["texts"]:
        yield "the text changed:"
        before, now = ([line for text in each["texts"] for line in text.splitlines()] for each in (old, new))
        yield from _indent(_diff(before, now))
    first = compare(one, other, token_text)
    if first is not None and first.position is None:
        yield first.what
    elif first is not None and first.position is not None:
        yield f"the first token that differs is number {first.position} of choice {first.choice}:"
        for name, receipt in (("recorded", one), ("now", other)):
            yield f"    {name}: {_token_at(receipt, first.choice, first.position, token_text)}"


def _token_at(receipt: Receipt, choice: int, position: int, token_text: TokenText) -> str:
    answer = receipt.choices[choice]
    if position >= len(answer.token_ids):
        return f"none, the answer had ended ({answer.finish_reason})"
    token_id = answer.token_ids[position]
    shown = f"{token_text(token_id)!r} ({token_id})"
    if answer.logprobs is None:
        return shown
    (logprob,) = struct.unpack(">f", bytes.fromhex(answer.logprobs.bits[position]))
    return f"{shown}, logprob {logprob:.9g}"


def _pretty(value: Any) -> list[str]:
    return json.dumps(value, indent=1, ensure_ascii=False).splitlines()


def _diff(before: list[str], now: list[str]) -> list[str]:
    lines = difflib.unified_diff(before, now, lineterm="", n=1)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
