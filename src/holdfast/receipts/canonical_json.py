"""Canonical JSON: one text for one value, as RFC 8785 (JCS) defines it.

Keys are sorted by their UTF-16 code units, there are no spaces, strings are UTF-8 with the shortest
escapes, numbers are doubles written as ECMAScript writes them. So 1.0 and 1 are the same number,
and whatever a tool does to spaces, key order, escapes and the notation of numbers changes no
digest.

The packages for RFC 8785 walk a value in Python, number by number. A receipt is made for every
answer and consists mostly of lists of token ids and strings: those go through `json`, which is in C.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal

JsonValue = None | bool | int | float | str | list["JsonValue"] | Mapping[str, "JsonValue"]

_MAX_EXACT = 1 << 53  # every smaller integer is a double
_PLAIN = frozenset({str, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def digest_of(value: JsonValue) -> str:
    """SHA-256 over canonical JSON, in hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_of_lists(value: Sequence[JsonValue]) -> str:
    """`digest_of` for nested lists of strings and token ids, of which `json` writes the canonical
    text."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()


def canonical_json(value: JsonValue) -> str:
    """The one text of a value. Raises ValueError for a number that no double represents."""
    if isinstance(value, Mapping):
        names = list(value)
        if not all(name.isascii() for name in names):
            names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        else:
            names.sort()
        return "{" + ",".join([f"{_encode(name)}:{canonical_json(value[name])}" for name in names]) + "}"
    if isinstance(value, list | tuple):
        if _is_flat(value):
            return _encode(value)
        return "[" + ",".join([canonical_json(one) for one in value]) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    return _encode(value)


def _is_flat(values: Sequence[JsonValue]) -> bool:
    """Whether `json` writes the canonical text of this list: strings and small integers only."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return min(values) >= -_MAX_EXACT and max(values) <= _MAX_EXACT  # type: ignore[type-var, operator]
    return kinds <= _PLAIN


def _number(value: int | float) -> str:
    if isinstance(value, int):
        if -_MAX_EXACT <= value <= _MAX_EXACT:
            return str(int(value))
        if abs(value) >= 1 << 1023:
            raise ValueError("it has a number that is no double")
        text = _write_double(float(value))
        if int(float(value)) != value and text != str(value):
            raise ValueError("it has a number that is no double")
        return text
    return _write_double(value)


def _write_double(value: float) -> str:
    """ECMAScript's Number::toString. Python and ECMAScript agree on the digits (the shortest that
    read back the same), but not on where the exponent begins."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("it has a number that is not finite")
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, minus = "".join(map(str, digits)), "-" if sign else ""
    point = len(text) + exponent  # position of the decimal point in the digits
    if 0 < point <= 21:
        whole, fraction = text[:point].ljust(point, "0"), text[point:]
        return f"{minus}{whole}{'.' if fraction else ''}{fraction}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    return f"{minus}{text[0]}{'.' if text[1:] else ''}{text[1:]}e{point - 1:+d}"
