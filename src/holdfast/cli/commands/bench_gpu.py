"""`holdfast bench gpu`: what a user of a GPU gets."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.bench_options import DtypeOption, ShapeOption, replace_given
from holdfast.cli.console import note
from holdfast.cli.requirements import require_folder, require_packages


def gpu(
    model: ShapeOption = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Parts: start, cells, breakdown, certificate, stress; default all. Names of cells, such as "
            "uniform,mixed,long-8k, choose among the cells; a wrong name lists them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for bench-gpu.json, which is written after every figure."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of the cells; default 2. The first is the first use, the best counts."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="After so many minutes no new measurement begins; default 60.")
    ] = None,
    dtype: DtypeOption = None,
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
    show: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Measure nothing; print the tables of this earlier bench-gpu.json, or of several.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the cells to this file, relative to the guarantee off.")
    ] = None,
) -> None:
    """Measure what a user gets: new processes, `LLM.generate` and nothing prepared, with the guarantee,
    without it, and with the library's own products; besides where a step's time goes, certificates of
    named shapes, and a determinism stress test.

    The weights are random, of a published shape. The tables are Markdown. Exits with 1 if a part
    fails, or a deterministic answer is not certified or differs.
    """
    from holdfast.bench.gpu.measure import read_rows
    from holdfast.bench.gpu.settings import parse_names, settings_for
    from holdfast.bench.gpu.table import plot_cells, tables

    if plot is not None:
        require_folder(plot)
        require_packages("matplotlib")
    if show:
        files = [read_rows(path) for path in show]
        header, rows = files[0][0], [row for _, own in files for row in own]
    else:
        parts, cells = parse_names(only)
        settings = replace_given(
            settings_for(model),
            rounds=rounds,
            minutes=minutes,
            dtype=dtype,
            stress_model=stress_model,
            stress_shape=stress_shape,
            stress_runs=stress_runs,
        )
        from holdfast.bench.gpu.bench import run_bench

        bench = run_bench(settings, parts, cells, out, note)
        header, rows = bench.header, bench.rows
    print(f"{header['machine']}, torch {header['torch']}, triton {header['triton']}, {header['date']}\n")
    print(tables(rows))
    if plot is not None:
        plot_cells(header, rows, plot)
        note(f"wrote {plot}")
    raise typer.Exit(0 if show or bench.is_good else 1)
