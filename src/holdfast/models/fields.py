"""Typed reads from an untrusted configuration.

A read returns a value of the given type and range, or raises `UnsupportedModel` with the key, the
value and what was expected. JSON's `true` is not a number here, and neither is NaN.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from holdfast.errors import ModelError, UnsupportedModel

Fields = Mapping[str, object]

_MAX_JSON_BYTES = 1 << 26


def read_json(path: Path, error: type[ModelError]) -> dict[str, object]:
    """Return the JSON object in a file, or raise `error`."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise error(f"{path.name} is larger than {_MAX_JSON_BYTES >> 20} MiB, which no configuration is")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise error(f"{path.name} cannot be read: {cause.strerror or cause}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"{path.name} is not UTF-8 text") from cause
    except RecursionError as cause:
        raise error(f"{path.name} is nested too deeply") from cause
    except ValueError as cause:
        raise error(f"{path.name} is not JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise error(f"{path.name} should contain a JSON object, not {type(value).__name__}")
    return cast(dict[str, object], value)


def refuse(key: str, value: object, expected: str) -> UnsupportedModel:
    """Return the error for a value that is not what it should be."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return UnsupportedModel(f"the model's configuration says {key} = {shown}; expected {expected}")


def read_int(fields: Fields, key: str, low: int, high: int, default: int | None = None) -> int:
    """Return an integer from `low` to `high`, or `default` if the key is absent."""
    value = fields.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refuse(key, value, f"an integer from {low} to {high}")
    return value


def read_float(
    fields: Fields,
    key: str,
    low: float,
    high: float,
    default: float | None = None,
    *,
    name: str | None = None,
) -> float:
    """Return a finite number above `low` and at most `high`, or `default` if the key is absent or null."""
    value = fields.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        raise refuse(name or key, value, f"a number above {low:g} and at most {high:g}")
    return float(value)


def read_bool(fields: Fields, key: str, default: bool | None = None) -> bool:
    """Return true or false, or `default` if the key is absent or null."""
    value = fields.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise refuse(key, value, "true or false")
    return value


def read_str(fields: Fields, key: str) -> str | None:
    """Return a string, or None if the key is absent or null."""
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise refuse(key, value, "a string")
    return value


def read_ids(fields: Fields, key: str, vocab_size: int) -> tuple[int, ...]:
    """Return token ids, which are stored as an integer, a list of them, or not at all."""
    value = fields.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < vocab_size:
            raise refuse(key, value, f"token ids from 0 to {vocab_size - 1}")
    return tuple(dict.fromkeys(ids))
