"""Reads files with a JSON object on each line."""

import json
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ConfigError


def read_texts(path: Path, *names: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each line that is not empty, and its fields of these names, which must be texts."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
    expected = f"expected a JSON object with {' and '.join(names)}"
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {expected}: {error}") from error
        given = fields if isinstance(fields, dict) else {}
        texts = [text for text in map(given.get, names) if isinstance(text, str)]
        if len(texts) < len(names):
            raise ConfigError(f"{path}, line {number}: {expected}, both texts; found {line.strip()[:60]!r}")
        yield number, texts
