"""`holdfast bench serve`: a load on a server, or the cost of deterministic requests to ordinary
ones.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.console import note
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped, parameter_names
from holdfast.cli.requirements import require_folder, require_packages
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.scheduler.policy import DeterminismMode

if TYPE_CHECKING:
    from holdfast.bench.serve.bench import ServedModel
    from holdfast.bench.serve.load import ArrivalConfig
    from holdfast.bench.serve.report import ServeReport
    from holdfast.bench.serve.workload import WorkloadConfig

_ENGINE = parameter_names(EngineConfig)
_DEFAULT_CONCURRENCY, _DEFAULT_DURATION = 8, 30.0
_ROUND_SECONDS = 20.0


def _option(panel: str, *names: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


@dataclass(frozen=True)
class LoadOptions:
    """How requests arrive and what they look like. A group of options (`groups`)."""

    concurrency: Annotated[
        int | None,
        _option(
            "Load", help="Clients that send the next request when the last is answered; default 8.", min=1
        ),
    ] = None
    rate: Annotated[float | None, _option("Load", help="Poisson arrivals: requests per second.")] = None
    num_requests: Annotated[int | None, _option("Load", help="End after so many requests.", min=1)] = None
    duration: Annotated[float | None, _option("Load", help="End after so many seconds; default 30.")] = None
    prompt_tokens: Annotated[str, _option("Load", help="Tokens of a prompt: a number or a range.")] = "32-96"
    output_tokens: Annotated[str, _option("Load", help="Tokens of an answer: a number or a range.")] = "32-96"
    deterministic_share: Annotated[
        float, _option("Load", help="Share of deterministic requests, from 0 to 1.")
    ] = 0.25
    deterministic_prompts: Annotated[
        int,
        _option(
            "Load",
            help="Number of prompts they share; all answers to one must be the same. 0: each has its own.",
            min=0,
        ),
    ] = 4
    disconnect_share: Annotated[
        float, _option("Load", help="Share of clients that disconnect at a random moment, from 0 to 1.")
    ] = 0.0
    seed: Annotated[int, _option("Load", help="Seed of all random choices.")] = 0

    def workload(self) -> "WorkloadConfig":
        from holdfast.bench.serve.workload import TokenRange, WorkloadConfig

        return WorkloadConfig(
            TokenRange.parse(self.prompt_tokens, "--prompt-tokens"),
            TokenRange.parse(self.output_tokens, "--output-tokens"),
            self.deterministic_share,
            self.disconnect_share,
            self.deterministic_prompts,
            self.seed,
        )

    def arrivals(self) -> "ArrivalConfig":
        from holdfast.bench.serve.load import ArrivalConfig

        concurrency, duration = self.concurrency, self.duration
        if concurrency is None and self.rate is None:
            concurrency = _DEFAULT_CONCURRENCY
        if duration is None and self.num_requests is None:
            duration = _DEFAULT_DURATION
        return ArrivalConfig(concurrency, self.rate, self.num_requests, duration)


@dataclass(frozen=True)
class TargetOptions:
    """The server to measure. A group of options (`groups`)."""

    url: Annotated[
        str | None,
        _option(
            "Server",
            help="URL of a running server; by default one is started with MODEL.",
            show_default=False,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        _option("Server", help="API key of the server.", envvar="HOLDFAST_API_KEY", show_default=False),
    ] = None
    timeout: Annotated[float, _option("Server", help="Seconds until an answer times out.", min=0.001)] = 600.0


_LOAD = LoadOptions()
_SERVER = TargetOptions()


@grouped(without=("chat_template", "receipt_key"))
def serve(
    context: typer.Context,
    model: o.ModelArgument = None,
    server: TargetOptions = _SERVER,
    load: LoadOptions = _LOAD,
    *,
    compare_offline: Annotated[
        bool,
        typer.Option(
            "--compare-offline",
            help="Then run the same load on the offline engine, in its own process. With --url, MODEL and the engine "
            "options are those of the offline engine.",
        ),
    ] = False,
    interference: Annotated[
        bool,
        typer.Option(
            "--interference",
            help="Measure ordinary streams with and without a quarter of all streams deterministic, on a server in auto "
            "and on one in verify.",
        ),
    ] = False,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, help="For --interference: number of rounds without and with, each --duration long."
        ),
    ] = 4,
    save: Annotated[
        Path | None, typer.Option("--json", "--save", help="Write the figures to this file, as JSON.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this file, as PNG.")] = None,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Run a load on a server: latencies, whether deterministic answers are the same, memory and
    leaks of the server.

    Exits with 1 if a request fails, a deterministic prompt has two answers, or the server leaks
    memory, pages or files.
    """
    require_packages("psutil", "httptools", *(("matplotlib",) if plot is not None else ()))
    require_folder(save, plot)
    given = given_options(context, _ENGINE)
    engine = replace(engine, model=model)
    server = replace(server, api_key=server.api_key.split(",")[0] if server.api_key else None)
    if interference:
        _refuse(
            given_options(context, ("url", "plot", "compare_offline", "rate", "num_requests")),
            "--interference",
        )
        both: tuple[DeterminismMode, ...] = ("auto", "verify")
        modes = (engine.determinism,) if "--determinism" in given else both
        o.open_model(engine)
        raise typer.Exit(_run_interference(engine, server, load, modes, rounds, save))
    if server.url is not None and not compare_offline:
        _refuse(given, "--url: the server has its own")
    if compare_offline and load.rate is not None:
        raise ConfigError(
            "--compare-offline compares speed, but a --rate decides the speed; give a --concurrency"
        )
    if server.url is None or compare_offline:
        o.open_model(engine)
    raise typer.Exit(_run_load(engine, server, load, compare_offline, save, plot))


def _refuse(given: list[str], beside: str) -> None:
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be combined with {beside}")


def _run_load(
    engine: EngineConfig,
    server: TargetOptions,
    load: LoadOptions,
    compare_offline: bool,
    save: Path | None,
    plot: Path | None,
) -> int:
    from holdfast.bench.report import write_report
    from holdfast.bench.serve import bench
    from holdfast.bench.serve.offline import measure_offline
    from holdfast.bench.serve.plot import plot_report
    from holdfast.bench.serve.table import show_report

    workload, arrivals = load.workload(), load.arrivals()

    async def measure() -> "tuple[ServeReport, ServedModel]":
        arguments = serve_arguments(engine)
        async with bench.connect_or_start(server.url, arguments, server.api_key, server.timeout) as target:
            return await bench.measure(target, workload, arrivals, note)

    report, model = asyncio.run(measure())
    if compare_offline:
        note(f"the offline engine: {arrivals}")
        speed = measure_offline(asdict(engine), workload, model.corpus_ids, arrivals)
        report.offline_tokens_per_second = speed
    show_report(report)
    if save is not None:
        write_report(report, save)
    if plot is not None:
        plot_report(report, plot)
    return 0 if report.is_good else 1


def _run_interference(
    engine: EngineConfig,
    server: TargetOptions,
    load: LoadOptions,
    modes: Sequence[DeterminismMode],
    pairs: int,
    save: Path | None,
) -> int:
    from holdfast.bench.report import write_report
    from holdfast.bench.serve.interference import MAX_RATIO, InterferenceRounds, measure_interference
    from holdfast.bench.serve.table import show_interference

    for mode in modes:
        if mode not in MAX_RATIO:
            raise ConfigError(f"there is no deterministic traffic where determinism is {mode}")
    rounds = InterferenceRounds(
        load.concurrency or _DEFAULT_CONCURRENCY,
        pairs,
        load.duration or _ROUND_SECONDS,
        load.deterministic_share,
    )
    if not 0 < rounds.num_deterministic < rounds.num_streams:
        raise ConfigError(
            f"of {rounds.num_streams} streams {rounds.num_deterministic} would be deterministic; both kinds are needed"
        )
    arguments = serve_arguments(replace(engine, determinism=o.ENGINE.determinism))
    report = asyncio.run(
        measure_interference(arguments, modes, load.workload(), rounds, server.api_key, note)
    )
    show_interference(report)
    if save is not None:
        write_report(report, save)
    return 0 if report.is_good else 1


def serve_arguments(engine: EngineConfig) -> list[str]:
    """The arguments of `holdfast serve`: the model, and every option that differs from its default."""
    arguments = [engine.model] if engine.model is not None else []
    for field in fields(engine):
        value = getattr(engine, field.name)
        if field.name == "model" or value == field.default:
            continue
        option = field.name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        else:
            arguments += [f"--{option}", str(value)]
    return arguments
