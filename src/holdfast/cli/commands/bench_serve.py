"""`holdfast bench serve`: a load on a server, or what deterministic requests cost their neighbours."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.bench.serve.load import Pace
from holdfast.bench.serve.workload import Shape, Span
from holdfast.cli.console import note
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped, parameter_names
from holdfast.cli.requirements import require_folder, require_packages
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.scheduler.policy import DeterminismMode

if TYPE_CHECKING:
    from holdfast.bench.serve.report import Report

_ENGINE = parameter_names(EngineConfig)
_DEFAULT_CONCURRENCY, _DEFAULT_DURATION = 8, 30.0
_ROUND_SECONDS = 20.0


def _option(panel: str, *names: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


@dataclass(frozen=True)
class LoadOptions:
    """How requests come and what they look like. A group of options (`groups`)."""

    concurrency: Annotated[
        int | None,
        _option("Load", help="Clients that ask again as soon as they are answered; 8 without a rate.", min=1),
    ] = None
    rate: Annotated[
        float | None, _option("Load", help="Requests a second that arrive by chance (Poisson).")
    ] = None
    num_requests: Annotated[int | None, _option("Load", help="End after so many.", min=1)] = None
    duration: Annotated[
        float | None, _option("Load", help="End after so many seconds; 30 without a number of requests.")
    ] = None
    prompt_tokens: Annotated[str, _option("Load", help="Of each prompt: a number, or a range.")] = "32-96"
    output_tokens: Annotated[str, _option("Load", help="Of each answer: a number, or a range.")] = "32-96"
    deterministic_share: Annotated[
        float, _option("Load", help="Share of requests under the guarantee, from 0 to 1.")
    ] = 0.25
    deterministic_prompts: Annotated[
        int,
        _option(
            "Load",
            help="They share so many prompts, each of which must have one answer; 0: none is shared.",
            min=0,
        ),
    ] = 4
    disconnect_share: Annotated[
        float, _option("Load", help="Share of clients that leave at a random moment, from 0 to 1.")
    ] = 0.0
    seed: Annotated[int, _option("Load", help="Of everything that is drawn.")] = 0

    def shape(self) -> Shape:
        return Shape(
            Span.parse(self.prompt_tokens, "--prompt-tokens"),
            Span.parse(self.output_tokens, "--output-tokens"),
            self.deterministic_share,
            self.disconnect_share,
            self.deterministic_prompts,
            self.seed,
        )

    def pace(self) -> Pace:
        concurrency, duration = self.concurrency, self.duration
        if concurrency is None and self.rate is None:
            concurrency = _DEFAULT_CONCURRENCY
        if duration is None and self.num_requests is None:
            duration = _DEFAULT_DURATION
        return Pace(concurrency, self.rate, self.num_requests, duration)


@dataclass(frozen=True)
class ServerChoice:
    """Which server. A group of options (`groups`)."""

    url: Annotated[
        str | None,
        _option("Server", help="A running server; without one, MODEL is served here.", show_default=False),
    ] = None
    api_key: Annotated[
        str | None,
        _option("Server", help="The key the server wants.", envvar="HOLDFAST_API_KEY", show_default=False),
    ] = None
    timeout: Annotated[float, _option("Server", help="Seconds to wait for an answer's end.", min=0.001)] = (
        600.0
    )


_LOAD = LoadOptions()
_SERVER = ServerChoice()


@grouped(without=("chat_template",))
def serve(
    context: typer.Context,
    model: o.ModelArgument = None,
    server: ServerChoice = _SERVER,
    load: LoadOptions = _LOAD,
    *,
    compare_offline: Annotated[
        bool,
        typer.Option(
            "--compare-offline",
            help="Then run the same load on the offline engine, in a process of its own. At a running server, MODEL and "
            "the engine's options are the offline engine's.",
        ),
    ] = False,
    interference: Annotated[
        bool,
        typer.Option(
            "--interference",
            help="Measure ordinary streams with a quarter of all streams deterministic and without, in turn, on a server in "
            "auto and on one in verify.",
        ),
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=1, help="Of --interference: so many without and so many with, each --duration.")
    ] = 4,
    save: Annotated[
        Path | None, typer.Option("--json", "--save", help="Write the figures to this file, as JSON.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this file, as PNG.")] = None,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """A load on a server: what clients wait, whether deterministic answers are one, what the server holds.

    Exits with 1 if a request failed, a deterministic prompt had two answers, or something was not given back.
    """
    require_packages("psutil", *(("matplotlib",) if plot is not None else ()))
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
        raise typer.Exit(_interfere(engine, server, load, modes, rounds, save))
    if server.url is not None and not compare_offline:
        _refuse(given, "--url: the server has its own")
    if compare_offline and load.rate is not None:
        raise ConfigError("--compare-offline compares speed, which a --rate decides; give a --concurrency")
    raise typer.Exit(_load(engine, server, load, compare_offline, save, plot))


def _refuse(given: list[str], beside: str) -> None:
    if given:
        raise ConfigError(f"{', '.join(given)} makes no sense beside {beside}")


def _load(
    engine: EngineConfig,
    server: ServerChoice,
    load: LoadOptions,
    compare_offline: bool,
    save: Path | None,
    plot: Path | None,
) -> int:
    from holdfast.bench.serve import bench as bench
    from holdfast.bench.serve.offline import measure_offline
    from holdfast.bench.serve.plot import plot_report
    from holdfast.bench.serve.report import save as save_report
    from holdfast.bench.serve.table import show_report

    shape, pace = load.shape(), load.pace()

    async def measure() -> "tuple[Report, bench.Served]":
        async with bench.reach(server.url, serve_arguments(engine), server.api_key, server.timeout) as target:
            return await bench.measure(target, shape, pace, note)

    report, served = asyncio.run(measure())
    if compare_offline:
        note(f"the offline engine: {pace}")
        report.offline_tokens_per_second = measure_offline(asdict(engine), shape, served.corpus_ids, pace)
    show_report(report)
    if save is not None:
        save_report(report, save)
    if plot is not None:
        plot_report(report, plot)
    return 0 if report.is_good else 1


def _interfere(
    engine: EngineConfig,
    server: ServerChoice,
    load: LoadOptions,
    modes: Sequence[DeterminismMode],
    pairs: int,
    save: Path | None,
) -> int:
    from holdfast.bench.serve.interference import WANTED, Rounds, measure_interference
    from holdfast.bench.serve.interference_table import show_interference
    from holdfast.bench.serve.report import save as save_report

    for mode in modes:
        if mode not in WANTED:
            raise ConfigError(f"there is no deterministic traffic where determinism is {mode}")
    rounds = Rounds(
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
    report = asyncio.run(measure_interference(arguments, modes, load.shape(), rounds, server.api_key, note))
    show_interference(report)
    if save is not None:
        save_report(report, save)
    return 0 if report.is_good else 1


def serve_arguments(engine: EngineConfig) -> list[str]:
    """What `holdfast serve` is started with: the model, and whatever has not its default."""
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
