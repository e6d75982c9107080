"""A survey as a table: a row for each cell, and in words what is not as it must be."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.determinism.survey import Finding, Verdict

_MARKS: dict[Verdict, str] = {"good": "green", "bad": "red", "left out": "yellow"}
_COUNTS = ("runs", "distinct\noutputs", "rolled\nback", "pre-\nempted", "checks")


def show_survey(findings: Sequence[Finding], console: Console | None = None) -> bool:
    """The table. True if every cell that ran is as it must be."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 120  # a file has room for whole words
    console.print(_table(findings))
    for remark in dict.fromkeys(_remark(finding) for finding in findings if finding.remark):
        console.print(remark, markup=True)
    bad = sum(finding.verdict == "bad" for finding in findings)
    if bad:
        console.print("[red]Not as it must be: this is a bug in Holdfast, please report it.[/]")
        return False
    runs = [finding.tally.num_runs for finding in findings if finding.tally and finding.cell.guarantee]
    off = [finding.tally.num_distinct for finding in findings if finding.tally and not finding.cell.guarantee]
    console.print(
        f"[green]With the guarantee: one output in each of {len(runs)} cells, {sum(runs)} runs, to the bit.[/]"
    )
    if off:
        console.print(f"Without it: up to {max(off)} different outputs in one cell.")
    return True


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(
        title="One request inside random loads", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("asked", overflow="fold", max_width=40)
    table.add_column("model", overflow="fold")
    for heading in ("modes", "kernels", "dtype"):
        table.add_column(heading, no_wrap=True)
    for heading in _COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, finding in enumerate(findings):
        cell = finding.cell
        last = number + 1 == len(findings) or _engine(findings[number + 1]) != _engine(finding)
        table.add_row(
            cell.feature,
            cell.model,
            ", ".join(cell.modes),
            cell.kernels,
            cell.dtype,
            *_counts(finding),
            end_section=last,
        )
    return table


def _engine(finding: Finding) -> tuple[object, ...]:
    cell = finding.cell
    return cell.model, cell.kernels, cell.dtype, cell.guarantee


def _counts(finding: Finding) -> tuple[str, ...]:
    tally = finding.tally
    if tally is None:
        return ("—",)
    colour = _MARKS[finding.verdict]
    distinct = f"[{colour}]{tally.num_distinct}[/]"
    stats = tally.stats
    return (
        str(tally.num_runs),
        distinct,
        str(stats.rolled_back),
        str(stats.preemptions),
        str(tally.num_checks),
    )


def _remark(finding: Finding) -> str:
    from rich.markup import escape

    return f"[{_MARKS[finding.verdict]}]{escape(f'{finding.cell.name}: {finding.remark}')}[/]"
