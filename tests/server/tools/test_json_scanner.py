"""The incremental scanner agrees with Python's JSON decoder and is independent of chunking."""

import json

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


def test_depth_limit() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0].ended
    assert scan("[" * (MAX_DEPTH + 1))[0].failed
    scanner = JsonScanner(max_depth=None)
    scanner.feed('{"a":[' * 100_000 + "]}" * 100_000)
    assert scanner.ended
