"""The stress test matrix as a table: a row per cell, then every failure and skipped cell with its
reason.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.bench.determinism.matrix import CellResult, CellStatus
from holdfast.bench.tables import make_table, open_console

_COLOURS: dict[CellStatus, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}
_COUNTS = ("runs", "distinct\noutputs", "rolled\nback", "pre-\nempted", "checks")


def show_matrix(results: Sequence[CellResult], console: Console | None = None) -> bool:
    """Print the table. True if no cell failed."""
    console = console or open_console(file_width=120)
    console.print(_table(results))
    for remark in dict.fromkeys(_remark(one) for one in results if one.remark):
        console.print(remark, markup=True)
    if any(one.status == "failed" for one in results):
        console.print("[red]The stress test failed: this is a bug in Holdfast, please report it.[/]")
        return False
    runs = [one.summary.num_runs for one in results if one.summary and one.cell.guarantee]
    off = [one.summary.num_distinct for one in results if one.summary and not one.cell.guarantee]
    console.print(
        f"[green]With the guarantee: one output in each of {len(runs)} cells, {sum(runs)} runs, to the bit.[/]"
    )
    if off:
        console.print(f"Without it: up to {max(off)} different outputs in one cell.")
    return True


def _table(results: Sequence[CellResult]) -> Table:
    headings = ("feature", "model", "modes", "kernels", "dtype")
    table = make_table("One request inside random loads", *headings, *_COUNTS, num_left=5, no_wrap=True)
    for column in table.columns[:2]:
        column.overflow, column.no_wrap = "fold", False
    table.columns[0].max_width = 40
    for number, one in enumerate(results):
        cell = one.cell
        last = number + 1 == len(results) or _engine(results[number + 1]) != _engine(one)
        names = (cell.feature, cell.model, ", ".join(cell.modes), cell.kernels, cell.dtype)
        table.add_row(*names, *_counts(one), end_section=last)
    return table


def _engine(one: CellResult) -> tuple[object, ...]:
    cell = one.cell
    return cell.model, cell.kernels, cell.dtype, cell.guarantee


def _counts(one: CellResult) -> tuple[str, ...]:
    summary = one.summary
    if summary is None:
        return ("—",)
    distinct = f"[{_COLOURS[one.status]}]{summary.num_distinct}[/]"
    counts = (summary.stats.rolled_back, summary.stats.preemptions, summary.num_checks)
    return str(summary.num_runs), distinct, *map(str, counts)


def _remark(one: CellResult) -> str:
    return f"[{_COLOURS[one.status]}]{escape(f'{one.cell.name}: {one.remark}')}[/]"
