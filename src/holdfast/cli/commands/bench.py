"""`holdfast bench`: benchmarks, determinism stress tests and the demo.

Each command calls into `holdfast.bench`.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.bench.speed.llama_cpp import PeerName
from holdfast.cli.commands.bench_frontend import frontend
from holdfast.cli.commands.bench_gpu import gpu
from holdfast.cli.commands.bench_paper import paper
from holdfast.cli.commands.bench_serve import serve
from holdfast.cli.console import StageBars, note
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped
from holdfast.cli.requirements import require_folder, require_packages
from holdfast.engine.config import EngineConfig
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from holdfast.bench.determinism.adversary.campaign import AdversaryReport
    from holdfast.bench.determinism.planted.report import PlantedReport
    from holdfast.bench.determinism.stress_jobs import StressReport

_MEASURED = replace(o.ENGINE, dtype="bf16", num_threads=2)
# Enough for 32 short requests; fewer batch sizes to capture and certify.
_RECORDED = replace(o.ENGINE, max_num_seqs=32, max_pass_tokens=128, max_model_len=1024)

bench = App(help="Benchmarks, determinism stress tests, a demo.", no_args_is_help=True)


@bench.command()
@grouped(only=("dtype", "kernels", "num_threads"))
def demo(model: o.ModelArgument = None, engine: EngineConfig = o.ENGINE) -> None:
    """Answer one prompt alone and inside two loads, ordinary and deterministic, and with forced
    rollbacks.

    Exits with 1 if a bit of a deterministic answer differs.
    """
    config = replace(engine, model=model)
    opened = o.open_model(config)
    from holdfast.bench.determinism.demo import run

    raise typer.Exit(0 if run(o.open_llm(config, opened=opened)) else 1)


@bench.command()
@grouped(only=("device", "dtype", "kernels", "num_threads", "load_format"))
def divergence(
    model: o.ModelArgument = None,
    runs: Annotated[int, typer.Option(min=3, help="Runs in each mode; the first two have no load.")] = 48,
    num_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of an answer.")] = 48,
    load: Annotated[int, typer.Option(min=1, max=31, help="Largest number of other requests.")] = 31,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Start no new load after this time.")] = 60.0,
    engine: EngineConfig = _RECORDED,
    recording: Annotated[
        Path | None, typer.Option("--read", help="Show this recording instead of making one.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the recording to this file, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the recording into this file, as PNG.")] = None,
) -> None:
    """Record one prompt's answers alone and under load: with the guarantee off, and with it.

    Exits with 1 unless the ordinary answers differ and the deterministic ones do not. On CPUs use
    --kernels torch: the answers of the C kernels do not depend on the load.
    """
    from holdfast.bench.determinism.divergence import RecordSettings, open_recorded, record_with
    from holdfast.bench.determinism.divergence_plot import plot_recording
    from holdfast.bench.determinism.divergence_table import show_recording
    from holdfast.bench.determinism.recording import read_recording
    from holdfast.bench.report import write_report

    require_packages(*(("matplotlib",) if plot is not None else ()))
    require_folder(save, plot)
    if recording is not None:
        report = read_recording(recording)
    else:
        settings = RecordSettings(runs, num_tokens, load, temperature, seconds=seconds, log=note)
        with StageBars() as progress:
            pair, described = open_recorded(replace(engine, model=model), progress)
        report = record_with(pair, described, settings)
    show_recording(report)
    if save is not None:
        write_report(report, save)
    if plot is not None:
        plot_recording(report, plot)
    raise typer.Exit(0 if report.is_good else 1)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def cpu(
    context: typer.Context,
    model: o.ModelArgument = None,
    peer: Annotated[
        PeerName,
        typer.Option(
            help="hugging-face: generate in the same process. llama.cpp: the same GGUF file as it is."
        ),
    ] = "hugging-face",
    peer_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with llama.cpp's programs; docs/build-llama-cpp.sh builds them. Default: the search path.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the best time counts.")] = 3,
    num_tokens: Annotated[int, typer.Option(min=2, help="Tokens decoded by each stream.")] = 64,
    engine: EngineConfig = _MEASURED,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this file, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this file, as PNG.")] = None,
) -> None:
    """Measure speed against another engine on the same weights, in turn; and the cost of one command.

    Against llama.cpp the weights of a GGUF file are computed as they are, unless --dtype is given.
    """
    is_llama_cpp = peer == "llama.cpp"
    if is_llama_cpp and not given_options(context, ("dtype",)):
        engine = replace(engine, dtype="auto")
    needed = [*([] if is_llama_cpp else ["transformers"]), *([] if plot is None else ["matplotlib"])]
    require_packages(*needed)
    require_folder(save, plot)
    o.open_model(replace(engine, model=model))
    from holdfast.bench.report import write_report
    from holdfast.bench.speed import cpu as speed
    from holdfast.bench.speed.cpu_plot import plot_speed
    from holdfast.bench.speed.cpu_table import show_speed

    report = speed.run(model, rounds, num_tokens, engine.num_threads, engine.dtype, note, peer, peer_dir)
    show_speed(report)
    if save is not None:
        write_report(report, save)
    if plot is not None:
        plot_speed(report, plot)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def ngram(
    model: o.ModelArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the best time counts.")] = 3,
    num_tokens: Annotated[int, typer.Option(min=2, help="Maximum length of an answer.")] = 256,
    engine: EngineConfig = _MEASURED,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this file, as JSON.")] = None,
) -> None:
    """Measure the gain of n-gram speculation, on text that copies its prompt and on text that does
    not.

    Exits with 1 if a bit differs or a gain is below its limit.
    """
    require_folder(save)
    config = replace(engine, model=model)
    opened = o.open_model(config)
    from holdfast.bench.report import write_report
    from holdfast.bench.speed import ngram as speed
    from holdfast.models.locate import locate

    llm = o.open_llm(config, opened=opened)
    report = speed.run(llm, locate(model).name, rounds, num_tokens, note)
    speed.show(report)
    if save is not None:
        write_report(report, save)
    raise typer.Exit(0 if report.is_good else 1)


@bench.command()
@grouped(only=("dtype", "num_threads"))
def structured(
    model: o.ModelArgument = None,
    requests: Annotated[int, typer.Option(min=8, help="Number of JSON schemas.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="Answers to each schema.")] = 2,
    engine: EngineConfig = _MEASURED,
) -> None:
    """Run deterministic JSON-schema requests among ordinary ones, and measure the cost of token
    masks.

    Exits with 1 if an answer does not conform to its schema or differs from an earlier one.
    """
    require_packages("llguidance", extra="structured")
    config = replace(engine, model=model)
    opened = o.open_model(config)
    from holdfast.bench.speed import structured as speed

    llm = o.open_llm(config, opened=opened)
    report = speed.run(llm.engine, requests, repeats, note)
    speed.show(report)
    raise typer.Exit(0 if report.is_good else 1)


@bench.command()
@grouped(only=("dtype", "kernels", "num_threads"))
def determinism(
    model: o.ModelArgument = None,
    runs: Annotated[int, typer.Option(min=1, help="Random loads around the request, in each cell.")] = 4,
    model_runs: Annotated[
        int | None, typer.Option(min=0, help="Random loads in each cell of MODEL; default as --runs.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random loads.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes. Each has its own engines.")] = 1,
    adversary: Annotated[
        bool,
        typer.Option(
            "--adversary",
            help="Attack the promise instead: hostile models, settings, environments, threads, schedules.",
        ),
    ] = False,
    planted: Annotated[
        bool,
        typer.Option(
            "--planted",
            help="Plant order changes in operations instead, and count those the certification finds.",
        ),
    ] = False,
    engine: EngineConfig = o.ENGINE,
    save: Annotated[Path | None, typer.Option(help="Write the report to this file, as JSON.")] = None,
) -> None:
    """Determinism stress test: every feature inside random loads, on this model and on tiny ones.

    Exits with 1 unless every cell with the guarantee has one answer and some cell without it has
    several. With --adversary, exits with 1 if an attack gives other bits under one fingerprint. With
    --planted, exits with 1 if a change that gives some input other bits was not found.
    """
    if adversary and planted:
        raise InvalidRequest("--adversary and --planted are two tests; give one of them")
    require_folder(save)
    if jobs > 1 and engine.num_threads is None:
        engine = replace(engine, num_threads=1)
    config = replace(engine, model=model)
    o.open_model(config)
    from holdfast.bench.report import write_report

    report: DataclassInstance
    if planted:
        report, is_good = _run_planted(config)
    elif adversary:
        report, is_good = _run_adversary(config, 2 * runs, jobs)
    else:
        report, is_good = _run_stress(config, runs, model_runs, seed, jobs)
    if save is not None:
        write_report(report, save)
    raise typer.Exit(0 if is_good else 1)


def _run_stress(
    config: EngineConfig, runs: int, model_runs: int | None, seed: int, jobs: int
) -> tuple["StressReport", bool]:
    from holdfast.bench.determinism.matrix import StressSettings, run_matrix
    from holdfast.bench.determinism.matrix_table import show_matrix
    from holdfast.bench.determinism.stress_jobs import make_report, plan_jobs, run_jobs
    from holdfast.models.locate import locate

    settings = StressSettings(runs, seed, note)
    if jobs == 1:
        engine, name = o.open_llm(config).engine, locate(config.model).name
        results = list(run_matrix(engine, name, config.num_threads, settings, model_runs))
    else:
        results = run_jobs(plan_jobs(config, settings, model_runs), jobs, note)
    return make_report(results, seed), show_matrix(results)


def _run_adversary(config: EngineConfig, num_loads: int, jobs: int) -> tuple["AdversaryReport", bool]:
    from holdfast.bench.determinism.adversary.campaign import CampaignScale, run_campaign
    from holdfast.bench.determinism.adversary.table import show_campaign
    from holdfast.models.locate import locate

    scale = CampaignScale(num_loads=num_loads, num_jobs=jobs, num_threads=config.num_threads)
    report = run_campaign(o.open_llm(config).engine, locate(config.model).name, scale, note)
    return report, show_campaign(report)


def _run_planted(config: EngineConfig) -> tuple["PlantedReport", bool]:
    from holdfast.bench.determinism.planted.report import plant_changes, show_planted

    report = plant_changes(config.model, config, note)
    return report, show_planted(report)


bench.command()(frontend)
bench.command()(gpu)
bench.command()(paper)
bench.command()(serve)
