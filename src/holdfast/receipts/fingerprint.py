"""The fingerprint: a digest of everything that decides bits, and of nothing else. Same fingerprint,
same bits.

It consists of named parts (`engine_fingerprint` collects them), so two fingerprints can be compared
part by part.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from holdfast.core.sampling_params import show
from holdfast.receipts.canonical_json import (
    Digest,
    JsonValue,
    canonical_json,
    digest_of,
    digest_text,
    join_object,
)

_DIGEST_DIGITS = 12
_ABSENT: Any = object()


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Parts by name, nested, and the digest over all of them, which is always right."""

    digest: Digest
    parts: dict[str, Any]

    def __post_init__(self) -> None:
        try:
            digest = digest_text(self._canonical_parts)
        except ValueError as error:
            raise ValueError(f"it has no digest: {error}") from error
        if digest != self.digest:
            raise ValueError("its digest is not that of its parts")

    @classmethod
    def of(cls, parts: Mapping[str, JsonValue]) -> "Fingerprint":
        return cls(digest_of(parts), {name: _plain(part) for name, part in parts.items()})

    @cached_property
    def _canonical_parts(self) -> str:
        return canonical_json(self.parts)

    @cached_property
    def canonical(self) -> str:
        return join_object({"digest": f'"{self.digest}"', "parts": self._canonical_parts})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy, for JSON. Reading its text takes a fifth of the time of a copy in Python."""
        copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return copy

    def part(self, name: str) -> Mapping[str, Any]:
        """Return a part that is an object. It is empty if there is none."""
        part = self.parts.get(name)
        return part if isinstance(part, dict) else {}

    def differences(
        self, other: "Fingerprint", *, here: str = "here", there: str = "in the receipt"
    ) -> list[str]:
        """Return one line for each leaf that differs: "settings.threads: 2 here, 1 in the receipt"."""
        return list_differences(self.parts, other.parts, here=here, there=there)


def list_differences(
    mine: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue], *, here: str, there: str
) -> list[str]:
    """Return one line for each leaf that differs in two nested mappings."""
    return [
        f"{name}: {_shown(one)} {here}, {_shown(other)} {there}"
        for name, one, other in _differing(mine, theirs)
    ]


def _plain(value: JsonValue) -> JsonValue:
    """Return a copy with integral floats as integers: tools that rewrite JSON turn 1.0 into 1."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _differing(
    mine: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue], at: str = ""
) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """(dotted name, value, other value) of every leaf that differs; a list is a leaf."""
    for name in dict.fromkeys((*mine, *theirs)):
        one, other = mine.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing(one, other, f"{at}{_shown(name)}.")
        elif one is _ABSENT or other is _ABSENT or digest_of(one) != digest_of(other):
            yield f"{at}{_shown(name)}", one, other


def _shown(value: JsonValue) -> str:
    """Return a name or a value on one line; both may come from an untrusted receipt."""
    if value is None or value is _ABSENT:
        return "none" if value is None else "absent"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:_DIGEST_DIGITS]}..."
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 80 else show(value)
