"""`holdfast bench`: the demo, the determinism stress test, a load on a server, speed on this machine.

Each command calls a module of `holdfast.bench`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import note, table, wide_stdout
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig

if TYPE_CHECKING:
    from holdfast.bench.determinism import CellResult
    from holdfast.bench.serve import ServeRun

_MEASURED = replace(o.ENGINE, certification="startup", max_num_seqs=32)
_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}

_FILE_WIDTH = 110  # columns of a table that no terminal shows

bench = App(help="Demo, determinism stress test, load on a server, speed.", no_args_is_help=True)


@bench.command()
@grouped(only=("device", "dtype", "kernels", "num_threads", "load_format"))
def demo(model: o.ModelArgument = None, engine: EngineConfig = o.ENGINE) -> None:
    """Answer one prompt alone and inside two loads, ordinary and deterministic, and with forced
    rollbacks.

    Exits with 1 if a bit of a deterministic answer differs.
    """
    llm = o.open_llm(replace(engine, model=model))
    from holdfast.bench.demo import run

    raise typer.Exit(0 if run(llm) else 1)


@bench.command()
@grouped(only=("device", "dtype", "kernels", "num_threads", "load_format", "kv_memory", "max_model_len"))
def determinism(
    model: o.ModelArgument = None,
    runs: Annotated[int, typer.Option(min=2, help="Random loads around the request, in each cell.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the random loads.")] = 0,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Determinism stress test: every request feature inside random loads, in auto and in verify.

    A control without the guarantee must give several answers. Exits with 1 if it does not, although the
    kernels of this machine differ, or if a cell with the guarantee has two answers. The digest of a cell's
    answers is the same in another process, and on another machine with the same fingerprint.
    """
    llm = o.open_llm(replace(engine, model=model))
    from holdfast.bench.determinism import run_cells, run_control

    results = list(run_cells(llm.engine, runs, seed, note))
    note("the control: a tiny model of near ties, guarantee off")
    results += run_control(runs, seed, engine.num_threads)
    raise typer.Exit(0 if _show_cells(results) else 1)


def _show_cells(results: Sequence["CellResult"]) -> bool:
    """Print a row for each cell and a line for each remark. Return whether no cell failed."""
    rows = []
    for one in results:
        summary, guarantee = one.summary, "on" if one.guarantee else "off"
        counts = ["", "", "", "", "", ""]
        if summary is not None:
            distinct = f"[{_COLOURS[one.status]}]{summary.num_distinct}[/]"
            stats = summary.stats
            numbers = (stats.rolled_back, stats.preemptions, summary.num_checks)
            counts = [str(summary.num_runs), distinct, *map(str, numbers), one.digest]
        rows.append([one.feature, guarantee, *counts])
    _print_table("feature|guarantee|runs|answers|rolled back|preempted|checks|digest", rows)
    for one in results:
        if one.remark:
            _print(f"{one.feature}: {one.remark}", _COLOURS[one.status])
    if any(one.status == "failed" for one in results):
        _print("The stress test failed: this is a bug in Holdfast, please report it.", "red")
        return False
    kept = [one.summary.num_runs for one in results if one.guarantee and one.summary is not None]
    _print(
        f"With the guarantee: one answer in each of {len(kept)} cells, {sum(kept)} runs, to the bit.", "green"
    )
    off = [one.summary.num_distinct for one in results if not one.guarantee and one.summary is not None]
    _print(f"Without it: up to {max(off, default=0)} answers in one cell.")
    return True


@bench.command()
@grouped(only=("device", "dtype", "kernels", "num_threads", "load_format"))
def speed(
    model: o.ModelArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the best time counts.")] = 2,
    num_tokens: Annotated[int, typer.Option(min=2, help="Tokens decoded by each stream.")] = 64,
    engine: EngineConfig = _MEASURED,
) -> None:
    """Measure tok/s on this machine: prefill and 1, 8 and 32 streams, ordinary and deterministic."""
    running = o.open_llm(replace(engine, model=model)).engine
    from holdfast.bench.speed import PREFILL, engine_runs, measure

    prefill = min(PREFILL, running.limits.max_model_len // 2)
    runs, vocab_size = engine_runs(running), running.limits.vocab_size
    found = measure(runs, vocab_size, rounds, num_tokens, note, prefill=prefill)
    base, *others = found
    rows = [[name, *(f"{value:,.4g}" for value in cells.values())] for name, cells in found.items()]
    for name in others:
        ratios = (value / found[base][cell] for cell, value in found[name].items())
        rows.append([f"{name} / {base}", *(f"{ratio:.2f}x" for ratio in ratios)])
    _print_table("tok/s|" + "|".join(found[base]), rows)


@bench.command()
@grouped(without=("chat_template", "receipt_key"))
def serve(
    context: typer.Context,
    model: o.ModelArgument = None,
    url: o.UrlOption = None,
    api_key: o.ApiKeyOption = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds without a byte before an error.", min=0.001)
    ] = 600.0,
    clients: Annotated[
        int, typer.Option(help="Each sends its next request when the last is answered.", min=1)
    ] = 8,
    seconds: Annotated[float, typer.Option(help="Begin no request after this time.", min=0.001)] = 30.0,
    prompt_words: Annotated[int, typer.Option(help="Words of a prompt, on average.", min=2)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer, on average.", min=2)] = 64,
    deterministic: Annotated[int, typer.Option(help="Clients whose requests are deterministic.", min=0)] = 2,
    prompts: Annotated[
        int, typer.Option(help="Prompts they share; all answers to one must be the same. 0: none.", min=0)
    ] = 4,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Put a load on a server: latencies, tok/s, and whether deterministic answers are the same.

    Exits with 1 if a request fails or a deterministic prompt has two answers.
    """
    engine = replace(engine, model=model)
    o.check_server(context, engine, url, also={"deterministic"})
    from holdfast.bench.serve import ServeLoad, connect, run_load

    load = ServeLoad(clients, seconds, prompt_words, output_tokens, deterministic, prompts, seed)

    async def measure() -> "ServeRun":
        async with connect(url, o.serve_arguments(engine), o.first_key(api_key), timeout) as client:
            note(f"{clients} clients, {seconds:g} s")
            return await run_load(client, load)

    raise typer.Exit(0 if _show_load(asyncio.run(measure())) else 1)


def _show_load(run: "ServeRun") -> bool:
    from holdfast.bench.serve import percentiles

    rows = []
    for deterministic in (False, True):
        for name, values in run.latencies(deterministic=deterministic).items():
            kind = "deterministic" if deterministic else "ordinary"
            rows.append(
                [name, kind, str(len(values)), *(f"{1e3 * one:,.1f}" for one in percentiles(values).values())]
            )
    _print_table("ms|requests|count|p50|p90|p99", rows)
    _print(f"{len(run.answers)} requests, {run.speed:,.1f} output tok/s")
    if run.distinct:
        modes = ", ".join(f"{count} {mode}" for mode, count in run.modes.most_common())
        _print(f"{len(run.distinct)} deterministic prompts, answers: {modes}")
    for problem in run.problems:
        _print(problem, "red")
    if not run.problems:
        _print("no problems: one answer to each deterministic prompt", "green")
    return not run.problems


def _print_table(headings: str, rows: Iterable[Sequence[str]]) -> None:
    shown = table(None, headings.split("|"))
    for row in rows:
        shown.add_row(*row)
    wide_stdout(_FILE_WIDTH).print(shown)


def _print(text: str, style: str = "") -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(text, style=style))
