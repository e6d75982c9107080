"""`holdfast bench gpu`: speed, determinism and its cost on a GPU."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.bench_options import (
    DtypeOption,
    ShapeOption,
    end_bench,
    replace_given,
    require_plots,
)
from holdfast.cli.console import note


def gpu(
    model: ShapeOption = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Sections: cells, speed, verify, breakdown, small, certificate, stress; default all. Names of "
            "cells, such as greedy-256,sampled,mixed, choose among the cells; a wrong name lists them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for plots and bench-gpu.json, which is written after every section."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds; the best time counts.")] = None,
    streams: Annotated[str | None, typer.Option(help="Concurrent requests, such as 1,8,32.")] = None,
    num_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each answer.")] = None,
    verify_tokens: Annotated[
        int | None, typer.Option(min=2, help="Tokens of each answer in the section verify.")
    ] = None,
    stress_model: Annotated[
        str | None, typer.Option(help="Real weights for the stress test: a .gguf file or a folder.")
    ] = None,
    stress_shape: Annotated[
        str | None,
        typer.Option(help="Shapes of the random weights for the stress test, separated by commas."),
    ] = None,
    stress_runs: Annotated[
        int | None, typer.Option(min=2, help="Random loads of the stress test, in each mode.")
    ] = None,
    dtype: DtypeOption = None,
    section_seconds: Annotated[
        float | None, typer.Option(min=1, help="After so many seconds a section starts no new measurement.")
    ] = None,
    needle_model: Annotated[str | None, typer.Option(hidden=True)] = None,
    needle_shape: Annotated[str | None, typer.Option(hidden=True)] = None,
    needle_runs: Annotated[int | None, typer.Option(min=2, hidden=True)] = None,
) -> None:
    """Measure speed through LLM.generate and beside vLLM's, certificates of named shapes, a determinism stress test, and
    where a step's time goes.

    The weights are random, of a published shape. Exits with 1 if a section fails or a deterministic
    answer differs.
    """
    from holdfast.bench.gpu.cells import CELL_NAMES
    from holdfast.bench.gpu.settings import (
        OLD_SECTIONS,
        parse_cells,
        parse_numbers,
        parse_sections,
        settings_for,
    )

    require_plots(out)
    sections = parse_sections(only, CELL_NAMES)
    for old, new in OLD_SECTIONS.items():
        if only is not None and old in only:
            note(f"the section {old} is deprecated; use {new}")
    for old_option, value in (("model", needle_model), ("shape", needle_shape), ("runs", needle_runs)):
        if value is not None:
            note(f"--needle-{old_option} is deprecated; use --stress-{old_option}")
    settings = replace_given(
        settings_for(model),
        rounds=rounds,
        cells=parse_cells(only, CELL_NAMES),
        streams=parse_numbers(streams) if streams is not None else None,
        num_tokens=num_tokens,
        verify_tokens=verify_tokens,
        stress_model=stress_model or needle_model,
        stress_shape=stress_shape or needle_shape,
        stress_runs=stress_runs or needle_runs,
        dtype=dtype,
        section_seconds=section_seconds,
    )
    from holdfast.bench.gpu.bench import GpuBench
    from holdfast.bench.gpu.plot import plot_report
    from holdfast.bench.gpu.table import show_report

    report = GpuBench(settings, out, note).run(sections)
    show_report(report)
    end_bench([] if out is None else plot_report(report, out), is_good=report.is_good)
