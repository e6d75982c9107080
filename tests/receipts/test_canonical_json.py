"""Canonical JSON: the vectors of RFC 8785, and one text for one value."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.receipts.canonical_json import canonical_json

# RFC 8785, appendix B: the bits of a double and its text.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555554", "333333333.33333325"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_are_written_as_ecmascript_writes_them(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(value) == text


def test_object_of_the_rfc() -> None:
    value = json.loads(
        r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    )
    assert canonical_json(value) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_sorted_by_utf16_code_units() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_json(dict.fromkeys(keys)))) == expected


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def as_doubles(value: object) -> object:
    """As a tool that knows doubles only reads and writes it."""
    if isinstance(value, dict):
        return {key: as_doubles(one) for key, one in reversed(value.items())}
    if isinstance(value, list):
        return [as_doubles(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(VALUES)
def test_text_survives_rewriting(value: object) -> None:
    text = canonical_json(value)  # type: ignore[arg-type]
    assert canonical_json(json.loads(text)) == text
    assert canonical_json(as_doubles(value)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [(1 << 53) + 1, 10**400, math.inf, math.nan, [1, (1 << 53) + 1]])
def test_number_that_is_no_double_is_refused(value: float | list[int]) -> None:
    with pytest.raises(ValueError, match=r"it has a number that is"):
        canonical_json(value)
