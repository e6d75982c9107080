"""`holdfast bench gpu`: speed, determinism and its price on a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.requirements import require_packages
from holdfast.cli.show import note


def gpu(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Shape of the random weights; llama-3.1-8b without one. tiny: all tiny, for a CPU.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Sections: speed, verify, breakdown, small, certificate, needle; all without it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for bench-gpu.json, written again after every section, and plots."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Each variant takes its best round.")] = None,
    streams: Annotated[str | None, typer.Option(help="Requests at once, such as 1,8,32.")] = None,
    num_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each answer.")] = None,
    verify_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each verified answer.")] = None,
    needle_model: Annotated[
        str | None, typer.Option(help="Real weights for the needle: a .gguf file or folder.")
    ] = None,
    needle_shape: Annotated[str | None, typer.Option(help="Shape of random weights for the needle.")] = None,
    needle_runs: Annotated[int | None, typer.Option(min=2, help="Random loads, in each mode.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32.")] = None,
    section_seconds: Annotated[
        float | None, typer.Option(min=1, help="When a section starts nothing new.")
    ] = None,
) -> None:
    """Speed beside another engine's figures, the certificate of named shapes, the needle, and where a step's time goes.

    Random weights of a published shape. Exits with 1 if a section fails or a guaranteed answer differs.
    """
    from holdfast.bench.gpu.bench import GpuBench
    from holdfast.bench.gpu.plot import plot_report
    from holdfast.bench.gpu.settings import parse_numbers, parse_sections, settings_for
    from holdfast.bench.gpu.table import show_report

    require_packages(*(("matplotlib",) if out is not None else ()))
    sections = parse_sections(only)
    given: dict[str, Any] = {
        "rounds": rounds,
        "streams": parse_numbers(streams) if streams is not None else None,
        "num_tokens": num_tokens,
        "verify_tokens": verify_tokens,
        "needle_model": needle_model,
        "needle_shape": needle_shape,
        "needle_runs": needle_runs,
        "dtype": dtype,
        "section_seconds": section_seconds,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    settings = replace(settings_for(model), **changes)
    report = GpuBench(settings, out, note).run(sections)
    show_report(report)
    if out is not None:
        for path in plot_report(report, out):
            note(f"wrote {path}")
    raise typer.Exit(0 if report.is_good else 1)
