"""What the scripts of this folder share: one run of a benchmark, times, Markdown tables and plots.

A run is flat rows in one JSON file: {name, date, commit, command, machine, torch, triton, rows}. A row is a
figure with all that was measured beside it; `part` says which part of the benchmark it belongs to. The
file is written anew after each row, so an interrupted run keeps its figures.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.version import __version__
from holdfast.worker.device import cpu_name

Row = dict[str, Any]

_ARM_PARTS = {  # (implementer, part) in /proc/cpuinfo
    "0x41 0xd0c": "Neoverse-N1",
    "0x41 0xd40": "Neoverse-V1",
    "0x41 0xd49": "Neoverse-N2",
    "0x41 0xd4f": "Neoverse-V2",
}
# Okabe and Ito's palette, which people with colour-blindness can tell apart.
COLOURS = ("#009E73", "#56B4E9", "#E69F00", "#0072B2", "#D55E00", "#CC79A7", "#999999")


def new_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the docstring of a script as it is."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


class Bench:
    """The rows so far. After `minutes` no new measurement should start."""

    def __init__(self, name: str, out: Path | None, minutes: float = 60.0) -> None:
        self.header: Row = {
            "name": name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": _commit(),
            "command": " ".join(sys.argv[1:]),
            "machine": machine(),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "holdfast": __version__,
        }
        self.rows: list[Row] = []
        self._path = None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            self._path = out / f"{name}.json"
        self._started = time.monotonic()
        self._seconds = 60 * minutes

    def log(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:7.1f} s] {text}", file=sys.stderr, flush=True)

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
        """Return whether the time is over. Then a row says what was cut off."""
        over = time.monotonic() - self._started > self._seconds
        if over and not any(row.get("part") == part and "cut_off" in row for row in self.rows):
            self.row(part=part, cut_off=f"no measurement began after {self._seconds / 60:g} minutes")
        return over

    @property
    def is_good(self) -> bool:
        return not any("error" in row for row in self.rows)

    def finish(self) -> None:
        """Print a table for each part, and exit with 1 if one failed."""
        print(title(self.header))
        for part in dict.fromkeys(row["part"] for row in self.rows):
            print(f"\n{part}\n\n{table([row for row in self.rows if row['part'] == part], 'part')}")
        sys.exit(0 if self.is_good else 1)


def read_rows(path: Path) -> tuple[Row, list[Row]]:
    """Read the header and the rows of a file."""
    header = json.loads(path.read_text())
    if not isinstance(header, dict) or "rows" not in header:
        sys.exit(f"{path} has no rows, so no script of this folder wrote it")
    return header, header.pop("rows")


def title(header: Row) -> str:
    return f"{header['machine']}, torch {header['torch']}, triton {header['triton']}, {header['date']}"


def shown(value: object) -> str:
    """Show a number with four digits, other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(shown(cell) for cell in line)} |" for line in lines)


def table(rows: Sequence[Row], *hidden: str) -> str:
    """Return a line for each row, and a column for each field that some row has, but for the hidden ones."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in hidden]
    return markdown(
        [name.replace("_", " ") for name in names], [[row.get(name, "") for name in names] for row in rows]
    )


def new_figure(height: float) -> Any:
    """Return a figure of matplotlib that is drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), dpi=200)
    FigureCanvasAgg(figure)
    return figure


def bars(rows: Sequence[Row], path: Path, *, name: str, value: str, group: str, heading: str) -> None:
    """Draw a bar for each row: `name` and `value` are its fields, `group` decides the colour."""
    figure = new_figure(1.4 + 0.3 * len(rows))
    panel = figure.subplots()
    groups = list(dict.fromkeys(row[group] for row in rows))
    places = range(len(rows) - 1, -1, -1)
    for own, colour in zip(groups, COLOURS, strict=False):
        drawn = [(place, row[value]) for place, row in zip(places, rows, strict=True) if row[group] == own]
        panel.barh(*zip(*drawn, strict=True), color=colour, height=0.7, label=own)
    for place, row in zip(places, rows, strict=True):
        panel.text(row[value], place, f" {shown(row[value])}", va="center", fontsize=8)
    panel.set_yticks(list(places), [str(row[name]) for row in rows], fontsize=8.5)
    panel.set_title(heading, fontsize=11)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="lower center", ncols=len(groups), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path)


def machine() -> str:
    """Return the name of the GPU if torch sees one, else of the CPU. It identifies no machine."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    architecture = platform.machine()
    name = cpu_name().removeprefix(architecture).strip()
    name = re.sub(r"\((?:R|TM)\)|\bCPU\b|@.*$|\bProcessor\b", "", _ARM_PARTS.get(name, name))
    return " ".join([*name.split(), f"({architecture})"])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of this folder, if it is in a repository and git is installed."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
