"""Model folders that are made to hang or crash the server that loads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.tiny import tiny_model


def backtracking_pattern(folder: Path) -> Path:
    """A tokenizer whose pattern needs exponential time for a run of one letter."""
    pattern = {
        "type": "Split",
        "pattern": {"Regex": "(a|a|aa)+$|(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }

    def edit(tokenizer: dict[str, Any]) -> None:
        steps = [pattern, tokenizer["pre_tokenizer"]]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    return _with_tokenizer(folder, edit)


def doubling_replacements(folder: Path) -> Path:
    """A tokenizer whose normalizer doubles the text forty times."""
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}

    def edit(tokenizer: dict[str, Any]) -> None:
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [double] * 40}

    return _with_tokenizer(folder, edit)


def many_positions(folder: Path) -> Path:
    """A configuration with 16 million positions."""
    model = tiny_model(folder / "positions")
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 16_000_000}))
    return model


HOSTILE_MODELS: dict[str, Callable[[Path], Path]] = {
    "backtracking pattern": backtracking_pattern,
    "doubling replacements": doubling_replacements,
    "16 M positions": many_positions,
}


def _with_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    model = tiny_model(folder / "tokenizer")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    edit(tokenizer)
    path.write_text(json.dumps(tokenizer))
    return model
