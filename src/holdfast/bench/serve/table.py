"""Serve reports as tables: a load on a server, and interference."""

from collections.abc import Iterator

from rich.console import Console

from holdfast.bench.percentiles import Percentiles
from holdfast.bench.serve.interference import JUDGED, InterferenceFinding, InterferenceReport
from holdfast.bench.serve.report import MIN_OFFLINE_RATIO, ServeReport
from holdfast.bench.tables import make_table, open_console

LATENCIES = {
    "first_text": "time to first text (TTFT)",
    "between_pieces": "between deltas (ITL)",
    "per_token": "per token (TPOT)",
    "end_to_end": "end to end",
}
_MB = 1e6


def show_report(report: ServeReport, console: Console | None = None) -> None:
    """The latencies of a load, its counts, and its problems."""
    console = console or open_console()
    console.print(f"{report.model} on {report.machine}, {report.server}")
    console.print(f"{report.load}; {report.requests}")
    headings = ("", "requests", "measured", "p50", "p90", "p99")
    table = make_table("milliseconds", *headings, num_left=2, no_wrap=True)
    for field, name in LATENCIES.items():
        for kind, one in report.latency.items():
            found: Percentiles = getattr(one, field)
            cells = map(_milliseconds, (found.p50, found.p90, found.p99))
            table.add_row(name, kind, str(found.count), *cells)
    console.print(table)
    for line in _lines(report):
        console.print(line)
    for problem in report.problems:
        console.print(f"[red]{problem}", markup=True)
    console.print("no problems" if report.is_good else "[red]there were problems")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _lines(report: ServeReport) -> Iterator[str]:
    errors = ", ".join(f"{count} × {kind}" for kind, count in report.errors.items()) or "no errors"
    yield (
        f"{report.num_requests} requests in {report.seconds:.1f} s: {report.tokens_per_second:.1f} tok/s, "
        f"{report.requests_per_second:.2f} answers per second; {report.num_left} disconnected; {errors}"
    )
    yield f"client: {report.client_cpu_seconds:.2f} s of CPU time, {report.client_cpu_share:.1%} of one core"
    if report.modes:
        modes = ", ".join(f"{count} {mode}" for mode, count in report.modes.items())
        names = ("candidates", "accepted", "rolled_back", "rollbacks", "windows")
        counts = ", ".join(
            f"{report.stats[name]} {name.replace('_', ' ')}" for name in names if name in report.stats
        )
        yield f"deterministic answers: {modes}; {counts or 'no counters reported'}"
    for one in report.answers:
        yield (
            f"deterministic prompt {one.number}: {one.asked} requests, {one.whole} complete answers, "
            f"{one.distinct} distinct"
        )
    if report.idle:
        found = ", ".join(
            f"{name.removeprefix('holdfast_')} {value:.0f}" for name, value in report.idle.items()
        )
        yield f"idle after the load: {found}"
    yield from _process_lines(report)
    if report.offline_ratio is not None:
        yield (
            f"offline engine: {report.offline_tokens_per_second:.1f} tok/s; the server reaches "
            f"{report.offline_ratio:.2f} of that (at least {MIN_OFFLINE_RATIO})"
        )


def _process_lines(report: ServeReport) -> Iterator[str]:
    processes = report.processes
    if processes is None:
        return
    held = ", ".join(f"{size / _MB:.0f} MB at {share}" for share, size in processes.resident_bytes.items())
    unknown = "unknown: the run was too short, or the KV cache was not yet full"
    verdict = {True: "flat", False: "not flat", None: unknown}[processes.flat]
    yield f"server memory: {held} of the run: {verdict}"
    yield (
        f"server file descriptors: {processes.fds_before} before, {processes.fds_after} after; "
        f"{processes.cpu_seconds:.1f} s of CPU time, {processes.cpu_seconds / report.seconds_to_silence:.2f} cores"
    )


def show_interference(report: InterferenceReport, console: Console | None = None) -> None:
    """The latencies of ordinary requests with and without deterministic ones, and their ratios."""
    console = console or open_console()
    rounds = report.rounds
    title = (
        f"{report.model} on {report.machine}: {rounds.num_streams} streams of {report.requests},\n"
        f"{rounds.num_deterministic} of them deterministic or none, "
        f"{rounds.pairs} round{'s' * (rounds.pairs != 1)} of {rounds.seconds:g} s each"
    )
    headings = ("ordinary requests, ms", "server", "", "alone", "among deterministic", "ratio", "at most")
    table = make_table(title, *headings, num_left=3)
    for one in report.findings:
        for field in LATENCIES:
            for percent in ("p50", "p90"):
                table.add_row(*_interference_cells(one, field, percent))
    console.print(table)
    for one in report.findings:
        modes = ", ".join(f"{count} {mode}" for mode, count in one.modes.items())
        console.print(
            f"{one.mode}: {one.without.first_text.count} ordinary requests alone; {one.among.first_text.count} among "
            f"deterministic ones, of which {modes or 'none'} answered"
        )
        if not one.is_enough:
            console.print("[red]too few requests were measured; give more --rounds or a longer --duration")


def _interference_cells(one: InterferenceFinding, field: str, percent: str) -> tuple[str, ...]:
    without: Percentiles = getattr(one.without, field)
    among: Percentiles = getattr(one.among, field)
    ratio, judged = one.ratio(field, percent), percent == "p50" and field in JUDGED
    colour = "[red]" if judged and ratio > one.wanted else ""
    return (
        LATENCIES[field],
        one.mode,
        percent,
        _milliseconds(getattr(without, percent)),
        _milliseconds(getattr(among, percent)),
        f"{colour}{ratio:.2f}x",
        f"{one.wanted:.2f}x" if judged else "",
    )
