"""Canonical JSON: one text for one value, as RFC 8785 (JCS) defines it.

Keys are sorted by their UTF-16 code units, there are no spaces, strings are UTF-8 with the shortest
escapes, numbers are doubles written as ECMAScript writes them. So 1.0 and 1 are the same number,
and whatever a tool does to spaces, key order, escapes and the notation of numbers changes no
digest.

The packages for RFC 8785 walk a value in Python, number by number. A receipt consists mostly of lists
of token ids and strings: those go through `msgspec` and `json`, which are in C.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated

import msgspec

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
JsonValue = None | bool | int | float | str | list["JsonValue"] | Mapping[str, "JsonValue"]

_MAX_EXACT = 1 << 53  # every smaller integer is a double
_LITERALS = {None: "null", True: "true", False: "false"}
_PLAIN = frozenset({str, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_integers = msgspec.json.Encoder().encode


def digest_of(value: JsonValue) -> str:
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Return SHA-256 over a text that is canonical JSON already."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: JsonValue) -> str:
    """Return the one text of a value. Raises ValueError for a number that no double represents."""
    if isinstance(value, str):
        return _encode(value)
    if value is None or value is True or value is False:
        return _LITERALS[value]
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, dict | Mapping):  # a dict is found sooner
        return join_object({name: canonical_json(one) for name, one in value.items()})
    return _flat_list(value) or "[" + ",".join([canonical_json(one) for one in value]) + "]"


def join_object(texts: Mapping[str, str]) -> str:
    """Return the canonical text of an object, of the canonical texts of its values."""
    key = None if all(map(str.isascii, texts)) else _utf16
    names = sorted(texts, key=key)
    return "{" + ",".join([f"{_name(one)}:{texts[one]}" for one in names]) + "}"


def _name(name: str) -> str:
    return _short_name(name) if len(name) <= 64 else _encode(name)


@lru_cache(4096)  # receipts have the same names again and again; a stranger's long ones are not kept
def _short_name(name: str) -> str:
    return _encode(name)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _flat_list(values: Sequence[JsonValue]) -> str:
    """Return the text of a list of small integers, or of strings, booleans and nulls; empty for any other."""
    kinds = set(map(type, values))
    if kinds == {int}:
        is_exact = min(values) >= -_MAX_EXACT and max(values) <= _MAX_EXACT  # type: ignore[type-var, operator]
        return _encode_integers(values).decode() if is_exact else ""
    return _encode(values) if values and kinds <= _PLAIN else ""


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
    if not math.isfinite(value):
        raise ValueError("it has a number that is not finite")
    if value.is_integer() and abs(value) <= _MAX_EXACT:
        return str(int(value))
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
