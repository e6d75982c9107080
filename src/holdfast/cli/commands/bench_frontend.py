"""`holdfast bench frontend`: what one frontend carries, with an engine that needs no model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import note
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.requirements import require_folder, require_packages
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError


@grouped(only=("max_num_seqs", "max_pass_tokens", "prefix_cache", "speculation"))
def frontend(
    model: o.ModelArgument = None,
    streams: Annotated[str, typer.Option(help="Numbers of streams, one load each.")] = "1,32,256,1024",
    num_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer, on average.")] = 128,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds of each load.")] = 6.0,
    step_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds the engine sleeps in a step; 0: it answers at once.")
    ] = 0.0,
    token_us: Annotated[
        float, typer.Option(min=0.0, help="Microseconds more for each token of a step.")
    ] = 0.0,
    replicas: Annotated[
        int, typer.Option(min=0, help="Measure so many engine replicas on a Ray cluster of this machine.")
    ] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Ask for deterministic answers.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the frontend's time goes. Needs py-spy.")
    ] = False,
    engine: EngineConfig = o.ENGINE,
    save: Annotated[
        Path | None, typer.Option("--json", "--save", help="Write the figures to this file, as JSON.")
    ] = None,
) -> None:
    """Measure what one server's frontend carries: streams, tokens per second, CPU time per token.

    The engine has the real scheduler and no model: it sleeps, and its answers are random words of
    MODEL's vocabulary. Exits with 1 if a stream fails.
    """
    require_packages("psutil", "httptools", "uvicorn", extra="server", what="the server")
    if replicas:
        require_packages("ray", extra="ray", what="--replicas")
    require_folder(save)
    o.open_model(replace(engine, model=model))
    from holdfast.bench.frontend.bench import FrontendLoad, measure_frontend
    from holdfast.bench.frontend.sleeping_runner import StepTime
    from holdfast.bench.frontend.table import show_frontend
    from holdfast.bench.report import write_report

    load = FrontendLoad(_numbers(streams), num_tokens, seconds, deterministic)
    times = StepTime(step_ms / 1e3, token_us / 1e6)
    report = measure_frontend(
        replace(engine, model=model), times, load, note, replicas=replicas, profile=profile
    )
    show_frontend(report)
    if save is not None:
        write_report(report, save)
    raise typer.Exit(0 if report.is_good else 1)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise ConfigError(f"--streams must be numbers from 1, such as 1,32,256; got {text!r}") from None
