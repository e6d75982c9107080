"""Write the tables of docs/benchmarks.md from the files in docs/data.

    python benchmarks/figures.py              # write them
    python benchmarks/figures.py --check      # exit with 1 if one is not what its file says

A table stands between <!-- NAME --> and <!-- end -->; its file, its rows and its columns are in `TABLES`, which a
new measurement may change. No figure of such a table is typed.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from measure import Row, markdown, new_parser, read_rows

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
_MARKED = re.compile(r"<!-- (?!end )([\w-]+) -->\n(?:(?!<!-- ).)*<!-- end -->", re.DOTALL)
Ratio = tuple[str, str, str]  # a label, what is divided, by what
AUTO, VERIFY, ORDINARY = "deterministic, auto", "deterministic, verify", "ordinary"


def rows_of(name: str, part: str) -> list[Row]:
    return [row for row in read_rows(DOCS / "data" / f"{name}.json")[1] if row["part"] == part]


def figure(value: object) -> str:
    """Show three digits of a number, or all before the point."""
    if not isinstance(value, float):
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def across(
    file: str,
    part: str,
    down: str,
    column: str,
    *,
    value: str = "tok/s",
    ratios: Sequence[Ratio] = (),
    ratio: Ratio | None = None,
) -> str:
    """Make a line for each value of `down` and a column for each of `column`.

    ratios: lines below that divide one line by another. ratio: a last column that divides two columns.
    """
    rows = rows_of(file, part)
    lines, columns = (list(dict.fromkeys(row[name] for row in rows)) for name in (down, column))
    cells = {(row[down], row[column]): row[value] for row in rows}
    shown = [[line, *(figure(cells.get((line, one))) for one in columns)] for line in lines]
    if ratio is not None:
        label, one, other = ratio
        for number, line in enumerate(lines):
            is_known = (line, one) in cells and (line, other) in cells
            shown[number].append(f"{cells[line, one] / cells[line, other]:.2f}" if is_known else "")
    for label, one, other in ratios:
        shown.append([label, *(f"{cells[one, at] / cells[other, at]:.2f}x" for at in columns)])
    return markdown([value, *map(str, columns), *([] if ratio is None else [ratio[0]])], shown)


def flat(file: str, part: str, *columns: str) -> str:
    return markdown(columns, [[figure(row.get(name)) for name in columns] for row in rows_of(file, part)])


def _cpu(file: str, peer: str) -> Callable[[], str]:
    ratios = [
        (f"auto / {peer}", AUTO, peer),
        ("auto / ordinary", AUTO, ORDINARY),
        ("verify / ordinary", VERIFY, ORDINARY),
    ]
    return partial(across, file, "speed", "variant", "cell", ratios=ratios)


TABLES: dict[str, Callable[[], str]] = {
    "cpu": _cpu("cpu", "Hugging Face"),
    "llama-cpp": _cpu("llama-cpp", "llama.cpp"),
    "cpu-recurrent": partial(
        flat,
        "cpu-recurrent",
        "ratio",
        *("model", "format", "beside", "prefill 512", "1 stream", "8 streams", "32 streams"),
    ),
    "cpu-busy": partial(
        flat,
        "cpu-busy",
        "speed",
        *("through", "busy", "1 stream", "4 streams", "16 streams", "least / quiet"),
    ),
    "gpu-cells": partial(
        across,
        "bench-gpu",
        "cells",
        "title",
        "variant",
        value="speed",
        ratio=("deterministic / off", "deterministic", "off"),
    ),
    "gpu-vllm": partial(flat, "gpu-vllm", "api", "case", "Holdfast", "vLLM", "Holdfast / vLLM"),
    "gpu-http": partial(flat, "gpu-vllm", "http", "case", "Holdfast", "vLLM"),
    "gpu-recurrent": partial(
        flat,
        "gpu-recurrent",
        "recurrent",
        *("model", "case", "mode", "deterministic", "off"),
        *("deterministic / off", "vLLM", "deterministic / vLLM", "step, ms"),
    ),
    "gpu-moe": partial(across, "gpu-moe", "moe", "variant", "cell"),
}


def written(page: str) -> str:
    """Return the page with every table made anew. A table that has no place in it is an error."""
    if missing := TABLES.keys() - _MARKED.findall(page):
        sys.exit(f"{PAGE.name} has no place for {', '.join(sorted(missing))}")
    return _MARKED.sub(lambda found: f"<!-- {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->", page)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if not parser.parse_args().check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit(f"a table of {PAGE.name} is not what its file says; run python benchmarks/figures.py")


if __name__ == "__main__":
    main()
