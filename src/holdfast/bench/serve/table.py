"""A load's report on the screen: what came of it, what clients waited, how answers were made, what the server held."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench.serve.latency import Latency, Percentiles
from holdfast.bench.serve.report import WANTED_OFFLINE_RATIO, Report

LATENCIES = {
    "first_text": "first text (TTFT)",
    "between_pieces": "between pieces (ITL)",
    "per_token": "a token (TPOT)",
    "end_to_end": "end to end",
}
_MB = 1e6


def show_report(report: Report, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(f"{report.model} on {report.machine}, {report.server}")
    console.print(f"{report.load}; {report.requests}")
    console.print(latency_table("milliseconds", report.latency))
    for line in _lines(report):
        console.print(line)
    for problem in report.problems:
        console.print(f"[red]{problem}", markup=True)
    console.print("all is well" if report.is_good else "[red]not all is well")


def latency_table(title: str, latency: dict[str, Latency]) -> Table:
    """A row a kind of waiting and of request."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "requests", "measured", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name not in ("", "requests") else "left", no_wrap=True)
    for field, name in LATENCIES.items():
        for kind, one in latency.items():
            found: Percentiles = getattr(one, field)
            cells = (milliseconds(value) for value in (found.p50, found.p90, found.p99))
            table.add_row(name, kind, str(found.count), *cells)
    return table


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _lines(report: Report) -> Iterator[str]:
    errors = ", ".join(f"{count} × {kind}" for kind, count in report.errors.items()) or "no errors"
    yield (
        f"{report.num_requests} requests in {report.seconds:.1f} s: {report.tokens_per_second:.1f} tok/s, "
        f"{report.requests_per_second:.2f} answers a second; {report.num_left} left early; {errors}"
    )
    yield f"client: {report.client_cpu_seconds:.2f} s of CPU time, {report.client_cpu_share:.1%} of one core"
    if report.modes:
        modes = ", ".join(f"{count} {mode}" for mode, count in report.modes.items())
        names = ("candidates", "accepted", "rolled_back", "rollbacks", "windows")
        counts = ", ".join(
            f"{report.stats[name]} {name.replace('_', ' ')}" for name in names if name in report.stats
        )
        yield f"deterministic answers: {modes}; {counts or 'no counts told'}"
    for one in report.answers:
        yield (
            f"deterministic prompt {one.number}: asked {one.asked} times, {one.whole} whole answers, {one.distinct} distinct"
        )
    if report.idle:
        found = ", ".join(
            f"{name.removeprefix('holdfast_')} {value:.0f}" for name, value in report.idle.items()
        )
        yield f"idle afterwards: {found}"
    yield from _process_lines(report)
    if report.offline_ratio is not None:
        yield (
            f"offline engine: {report.offline_tokens_per_second:.1f} tok/s; the server makes {report.offline_ratio:.2f} of "
            f"that ({WANTED_OFFLINE_RATIO} is wanted)"
        )


def _process_lines(report: Report) -> Iterator[str]:
    processes = report.processes
    if processes is None:
        return
    held = ", ".join(f"{size / _MB:.0f} MB at {share}" for share, size in processes.resident_bytes.items())
    verdict = {True: "flat", False: "not flat", None: "too short a run, or too large a KV cache, to tell"}[
        processes.flat
    ]
    yield f"server memory: {held} of the run: {verdict}"
    yield (
        f"server handles: {processes.fds_before} before, {processes.fds_after} after; "
        f"{processes.cpu_seconds:.1f} s of CPU time, {processes.cpu_seconds / report.seconds_to_silence:.2f} cores"
    )
