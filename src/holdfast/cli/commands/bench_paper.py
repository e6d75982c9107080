"""`holdfast bench paper`: the figures of papers on deterministic inference, on this engine."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.bench_options import DtypeOption, ShapeOption, replace_given
from holdfast.cli.console import note
from holdfast.cli.requirements import require_packages


def paper(
    model: ShapeOption = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Parts: throughput, latency, rollbacks; default all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plots and bench-paper.json, written after every point.")
    ] = None,
    shares: Annotated[
        str | None, typer.Option(help="Deterministic requests in per cent, such as 0,10,100.")
    ] = None,
    rates: Annotated[str | None, typer.Option(help="Requests per second, such as 4,12,20.")] = None,
    latency_seconds: Annotated[float | None, typer.Option(min=0.1, help="Time of each arrival rate.")] = None,
    dtype: DtypeOption = None,
) -> None:
    """Measure throughput by share of deterministic requests, latency by arrival rate, and rolled-back
    tokens by window and group, beside the published figures of LLM-42 and SGLang.

    In process, random weights, lengths like those of the papers' traces. Exits with 1 if a part
    fails.
    """
    from holdfast.bench.paper.settings import paper_settings, parse_parts, parse_rates, parse_shares

    if out is not None:
        require_packages("matplotlib")  # for the plots: say so before anything is measured
    parts = parse_parts(only)
    settings = replace_given(
        paper_settings(model),
        shares=None if shares is None else parse_shares(shares),
        rates=None if rates is None else parse_rates(rates),
        latency_seconds=latency_seconds,
        dtype=dtype,
    )
    from holdfast.bench.paper.bench import PaperBench
    from holdfast.bench.paper.plot import plot_paper
    from holdfast.bench.paper.table import show_paper

    report = PaperBench(settings, out, note).run(parts)
    show_paper(report)
    for path in [] if out is None else plot_paper(report, out):
        note(f"wrote {path}")
    raise typer.Exit(1 if report.errors else 0)
