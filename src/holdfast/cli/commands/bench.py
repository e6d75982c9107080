"""`holdfast bench`: measurements and the demonstration, each a thin call into `holdfast.bench`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.bench_gpu import gpu
from holdfast.cli.commands.bench_serve import serve
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.requirements import require_folder, require_packages
from holdfast.cli.show import note
from holdfast.engine.config import EngineConfig

_MEASURED = replace(o.ENGINE, dtype="bf16", num_threads=2)

bench = typer.Typer(help="Measure speed, prick determinism, show it.", no_args_is_help=True)


@bench.command()
@grouped(only=("num_threads",))
def demo(model: o.ModelArgument = None, engine: EngineConfig = o.ENGINE) -> None:
    """One deterministic prompt: alone, inside two loads, after forced rollbacks. Exits with 1 if a bit differs."""
    from holdfast.bench.determinism.demo import run

    raise typer.Exit(0 if run(o.open_llm(replace(engine, model=model))) else 1)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def cpu(
    model: o.ModelArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each variant takes its best round.")] = 3,
    num_tokens: Annotated[int, typer.Option(min=2, help="Tokens decoded by each stream.")] = 64,
    engine: EngineConfig = _MEASURED,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this file, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this file, as PNG.")] = None,
) -> None:
    """Speed beside Hugging Face generate: the same weights, in the same process; and what one command costs."""
    from holdfast.bench.speed import cpu as speed
    from holdfast.bench.speed.plot import plot_speed
    from holdfast.bench.speed.table import show_speed

    require_packages("transformers", *(("matplotlib",) if plot is not None else ()))
    require_folder(save, plot)
    report = speed.run(model, rounds, num_tokens, engine.num_threads, engine.dtype, note)
    show_speed(report)
    if save is not None:
        speed.save(report, save)
    if plot is not None:
        plot_speed(report, plot)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def lookup(
    model: o.ModelArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each variant takes its best round.")] = 3,
    num_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 256,
    engine: EngineConfig = _MEASURED,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this file, as JSON.")] = None,
) -> None:
    """What the look-up in a request's own text is worth, on text that copies and on text that does not.

    Exits with 1 if a bit differs or the figures are not reached.
    """
    from holdfast.bench.speed import ngram as guesses
    from holdfast.models.locate import locate

    require_folder(save)
    llm = o.open_llm(replace(engine, model=model))
    report = guesses.run(llm, locate(model).name, rounds, num_tokens, note)
    guesses.show(report)
    if save is not None:
        guesses.save(report, save)
    raise typer.Exit(0 if report.is_good else 1)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def forms(
    model: o.ModelArgument = None,
    requests: Annotated[int, typer.Option(min=8, help="How many JSON schemas.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is asked.")] = 2,
    engine: EngineConfig = _MEASURED,
) -> None:
    """JSON-schema requests under the guarantee, among ordinary ones: all valid, one answer each, and what masks cost.

    Exits with 1 unless they are.
    """
    from holdfast.bench.speed import structured as structured

    require_packages("llguidance", extra="structured")
    llm = o.open_llm(replace(engine, model=model))
    report = structured.run(llm.engine, requests, repeats, note)
    structured.show(report)
    raise typer.Exit(0 if report.is_good else 1)


@bench.command()
@grouped(only=("dtype", "kernels", "num_threads"))
def needle(
    model: o.ModelArgument = None,
    runs: Annotated[int, typer.Option(min=1, help="Random loads around the request, in each cell.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the random loads.")] = 0,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Every feature inside random loads, on this model and on tiny ones, with the guarantee and without.

    Exits with 1 unless all answers of a cell are one, and some without the guarantee several.
    """
    from holdfast.bench.determinism.survey import Loads, survey
    from holdfast.bench.determinism.survey_table import show_survey
    from holdfast.models.locate import locate

    llm = o.open_llm(replace(engine, model=model))
    findings = list(survey(llm.engine, locate(model).name, engine.num_threads, Loads(runs, seed, note)))
    raise typer.Exit(0 if show_survey(findings) else 1)


bench.command()(gpu)
bench.command()(serve)
