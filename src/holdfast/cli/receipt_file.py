"""Receipts on disk, as `holdfast replay` reads them: one JSON object a line, a line for each prompt."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.core.results import Result
from holdfast.errors import InvalidRequest


def require_writable(path: Path) -> None:
    """What cannot be written is said now, not after the answer."""
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InvalidRequest(f"the receipt {path} cannot be written: {what}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequest(f"the receipt {path} cannot be written: permission denied")


def write_receipts(path: Path, results: Sequence[Result]) -> None:
    """Line k is prompt k's; an answer that failed has no receipt, and its line is null."""
    lines = [f"{json.dumps(result.receipt)}\n" for result in results]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"the receipt {path} cannot be written: {error.strerror}") from error


def drop_prompt(result: Result) -> Result:
    """The same result; its receipt has only the prompt's digest."""
    from holdfast.receipts.receipt import without_prompt

    return result if result.receipt is None else replace(result, receipt=without_prompt(result.receipt))
