"""One run of a benchmark: flat rows in one JSON file, and Markdown tables of such rows.

The file is {name, date, machine, torch, triton, holdfast, rows}. A row is a figure with all that was
measured beside it; `part` says which part of the benchmark it belongs to. The file is written anew
after each row, so an interrupted run keeps its figures.
"""

import datetime
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.bench.machine import device_machine_name, triton_version
from holdfast.errors import ConfigError
from holdfast.version import __version__

Row = dict[str, Any]


class Bench:
    """The rows so far. After `minutes` no new measurement should start."""

    def __init__(
        self, name: str, out: Path | None, log: Callable[[str], None], minutes: float = 60.0
    ) -> None:
        self.header: Row = {
            "name": name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": device_machine_name(),
            "torch": torch.__version__,
            "triton": triton_version(),
            "holdfast": __version__,
        }
        self.rows: list[Row] = []
        self._path = None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            self._path = out / f"{name}.json"
        self._log = log
        self._started = time.monotonic()
        self._seconds = 60 * minutes

    def log(self, text: str) -> None:
        self._log(f"[{time.monotonic() - self._started:7.1f} s] {text}")

    def row(self, **fields: Any) -> None:
        """Add a row and write the file. A field that is None is left out."""
        row = {name: value for name, value in fields.items() if value is not None}
        self.rows.append(row)
        self.log(", ".join(f"{name} {shown(value)}" for name, value in row.items()))
        if self._path is not None:
            draft = self._path.with_name(f"{self._path.name}.tmp")
            draft.write_text(json.dumps({**self.header, "rows": self.rows}, indent=1) + "\n")
            draft.replace(self._path)

    @contextmanager
    def part(self, **fields: Any) -> Iterator[None]:
        """Note an exception as a row with `error`, so that the next measurement runs."""
        try:
            yield
        except Exception as error:
            self.log(traceback.format_exc())
            self.row(**fields, error=f"{type(error).__name__}: {error}")

    def is_over(self, part: str) -> bool:
        """Whether the time is over. Then a row says what was cut off."""
        over = time.monotonic() - self._started > self._seconds
        if over and not any(row["part"] == part and "cut_off" in row for row in self.rows):
            self.row(part=part, cut_off=f"no measurement began after {self._seconds / 60:g} minutes")
        return over

    @property
    def is_good(self) -> bool:
        return not any("error" in row for row in self.rows)


def read_rows(path: Path) -> tuple[Row, list[Row]]:
    """The header and the rows of a file."""
    header = json.loads(path.read_text())
    if not isinstance(header, dict) or "rows" not in header:
        raise ConfigError(f"{path} has no rows, so no benchmark of this version wrote it")
    return header, header.pop("rows")


def shown(value: object) -> str:
    """A number with four digits; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(shown(cell) for cell in line)} |" for line in lines)


def table(rows: Sequence[Row], *hidden: str) -> str:
    """A line for each row, and a column for each field that some row has, but for the hidden ones."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in hidden]
    return markdown(
        [name.replace("_", " ") for name in names], [[row.get(name, "") for name in names] for row in rows]
    )
