"""Findings of interference on the screen: what ordinary requests waited without deterministic ones, and among them."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.serve.interference import JUDGED, Finding, InterferenceReport
from holdfast.bench.serve.latency import Percentiles
from holdfast.bench.serve.table import LATENCIES, milliseconds

_PERCENTS = ("p50", "p90")


def show_interference(report: InterferenceReport, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    rounds = report.rounds
    title = (
        f"{report.model} on {report.machine}: {rounds.num_streams} streams of {report.requests},\n"
        f"{rounds.num_deterministic} of them deterministic or none, "
        f"{rounds.pairs} round{'s' * (rounds.pairs != 1)} of {rounds.seconds:g} s each"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("ordinary requests, ms", "server", "", "alone", "among deterministic", "ratio", "wanted"):
        table.add_column(
            name, justify="right" if name in ("alone", "among deterministic", "ratio", "wanted") else "left"
        )
    for one in report.findings:
        for field in LATENCIES:
            for percent in _PERCENTS:
                table.add_row(*_cells(one, field, percent))
    console.print(table)
    for one in report.findings:
        modes = ", ".join(f"{count} {mode}" for mode, count in one.modes.items())
        console.print(
            f"{one.mode}: {one.without.first_text.count} ordinary requests alone; {one.among.first_text.count} among "
            f"deterministic ones, of which {modes or 'none'} answered"
        )
        if not one.is_enough:
            console.print("[red]too little was measured; give more --rounds or a longer --duration")


def _cells(one: Finding, field: str, percent: str) -> tuple[str, ...]:
    without: Percentiles = getattr(one.without, field)
    among: Percentiles = getattr(one.among, field)
    ratio, judged = one.ratio(field, percent), percent == "p50" and field in JUDGED
    colour = "[red]" if judged and ratio > one.wanted else ""
    return (
        LATENCIES[field],
        one.mode,
        percent,
        milliseconds(getattr(without, percent)),
        milliseconds(getattr(among, percent)),
        f"{colour}{ratio:.2f}x",
        f"{one.wanted:.2f}x" if judged else "",
    )
