"""`holdfast bench`: measurements and the demonstration, each a thin call into `holdfast.bench`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options as o
from holdfast.cli.show import note
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.bench.cpu import Report
    from holdfast.bench.needle import Tally

bench = typer.Typer(help="Measure speed, prick determinism, show it.", no_args_is_help=True)


@bench.command()
def demo(model: o.ModelArgument = None, num_threads: o.NumThreads = None) -> None:
    """One deterministic prompt: alone, inside two loads, after forced rollbacks. Exits with 1 if a bit differs."""
    from holdfast.bench.demo import run

    raise typer.Exit(0 if run(o.EngineOptions(model, num_threads=num_threads).open()) else 1)


@bench.command()
def cpu(
    model: o.ModelArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each variant takes its best round.")] = 3,
    num_tokens: Annotated[int, typer.Option(min=2, help="Tokens decoded by each stream.")] = 64,
    dtype: o.Dtype = "bf16",
    num_threads: o.NumThreads = 2,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this file, as JSON.")] = None,
) -> None:
    """Speed beside Hugging Face generate: the same weights, in the same process."""
    try:
        from holdfast.bench import cpu as speed
    except ImportError as error:
        raise ConfigError(
            f"the benchmark needs {error.name}; install it with: pip install 'holdfast[bench]'"
        ) from error
    report = speed.run(model, rounds, num_tokens, num_threads, dtype, note)
    _show_speed(report)
    if save is not None:
        speed.save(report, save)


@bench.command()
def needle(
    model: o.ModelArgument = None,
    runs: Annotated[int, typer.Option(min=1, help="Random loads around the request.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the random loads.")] = 0,
    dtype: o.Dtype = "auto",
    kernels: o.KernelsOption = "auto",
    num_threads: o.NumThreads = None,
) -> None:
    """One deterministic request inside random loads, in auto and verify. Exits with 1 unless all answers are one."""
    from holdfast.bench.needle import Scale, prick
    from holdfast.core.params import SamplingParams

    llm = o.EngineOptions(model, dtype, num_threads=num_threads, kernels=kernels).open()
    prompt_ids = llm.engine.tokenizer.encode("The tide went out and left the rocks bare, and on every rock")
    params = SamplingParams(
        max_tokens=24, temperature=0.8, seed=7, ignore_eos=True, logprobs=3, deterministic=True
    )
    scale = Scale(max_prompt=min(700, llm.engine.limits.max_model_len - 64))
    tally = prick(
        llm.engine, prompt_ids, params, ("auto", "verify"), runs, seed=seed, scale=scale, each=_count_to(runs)
    )
    _show_needle(tally)
    raise typer.Exit(0 if tally.num_distinct == 1 else 1)


def _count_to(total: int) -> Callable[[int], None]:
    """Says now and then how far it is."""

    def count(done: int) -> None:
        if done % 10 == 0 or done == total:
            note(f"run {done} of {total}")

    return count


def _show_needle(tally: "Tally") -> None:
    stats = tally.stats
    typer.echo(
        f"{tally.num_runs} runs, {tally.num_distinct} distinct answer{'s' * (tally.num_distinct != 1)}; "
        f"candidates {stats.candidates} = accepted {stats.accepted} + rolled back {stats.rolled_back}, "
        f"windows {stats.windows}, preemptions {stats.preemptions}, cached tokens {stats.cached_tokens}"
    )


def _show_speed(report: "Report") -> None:
    """tok/s, and in brackets how many times Hugging Face's."""
    from rich.console import Console
    from rich.table import Table

    first = next(iter(report.speed))
    title = f"tok/s on {report.machine}, {report.threads} threads, torch {report.torch}, {report.model}"
    table = Table(title=title, title_justify="left")
    table.add_column(f"{report.dtype} ({first}: {report.hugging_face_dtype})")
    for cell in report.speed[first]:
        table.add_column(
            cell if cell == "prefill" else f"{cell} stream{'s' * (cell != '1')}", justify="right"
        )
    for variant, cells in report.speed.items():
        entries = (
            f"{speed:.1f} ({report.ratio(variant, first, cell):.2f}x)" for cell, speed in cells.items()
        )
        table.add_row(variant, *entries)
    Console(highlight=False).print(table)
