"""The incremental scanner agrees with Python's JSON decoder and is independent of chunking."""

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.tools.json_scanner import MAX_DEPTH, JsonScanner

NEAR_JSON = st.lists(
    st.sampled_from(
        [
            *'{}[]",:\\ \n\t-+.eE019ué',
            '"a"',
            '"a":',
            "true",
            "false",
            "null",
            "\\u00e9",
            "NaN",
            "nul",
            "-0.5e+1",
            "\x1f",
        ]
    ),
    max_size=24,
).map("".join)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def refuse(name: str) -> None:
    raise ValueError(name)


def end_of(text: str) -> int | None:
    """The end of the value according to Python's decoder."""
    try:
        return json.JSONDecoder(parse_constant=refuse).raw_decode(text)[1]
    except ValueError:
        return None


def scan(text: str) -> tuple[JsonScanner, int]:
    scanner = JsonScanner()
    return scanner, scanner.feed(text)


@settings(deadline=None)
@given(st.sampled_from("{["), NEAR_JSON)
def test_scanner_agrees_with_python(bracket: str, rest: str) -> None:
    text = bracket + rest
    scanner, end = scan(text)
    assert (end if scanner.ended else None) == end_of(text)
    assert not (scanner.ended and scanner.failed)


@settings(deadline=None)
@given(st.sampled_from("{["), NEAR_JSON, st.lists(st.integers(0, 60)))
def test_scanner_is_independent_of_chunking(bracket: str, rest: str, splits: list[int]) -> None:
    text = bracket + rest
    whole, end = scan(text)
    places = sorted({0, len(text), *(cut for cut in splits if cut < len(text))})
    scanner, taken = JsonScanner(), 0
    for begin, stop in itertools.pairwise(places):
        taken += scanner.feed(text[begin:stop])
        if scanner.ended or scanner.failed:
            break
    assert (scanner.ended, scanner.failed, taken) == (whole.ended, whole.failed, end)


def test_depth_limit() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0].ended
    assert scan("[" * (MAX_DEPTH + 1))[0].failed
    scanner = JsonScanner(max_depth=None)
    scanner.feed('{"a":[' * 100_000 + "]}" * 100_000)
    assert scanner.ended
