"""The model and the engine's options, or a server in their place. `EngineConfig` is the option group.

A command checks its settings with `open_model` before it imports torch.
"""

import gc
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options.groups import given_options, parameter_names
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.console import StageBars
    from holdfast.engine.llm.llm import LLM
    from holdfast.engine.start.preflight import OpenedModel

MODEL_HELP = "Folder, .gguf file, Hugging Face id or built-in name. Default: the default model."

ModelOption = Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP)]
ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP)]

UrlOption = Annotated[
    str | None, typer.Option(help="A running server; by default one is started with the model.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(help="API key of the server.", envvar="HOLDFAST_API_KEY", rich_help_panel="Server"),
]

ENGINE = EngineConfig()


def check_server(
    context: typer.Context, engine: EngineConfig, url: str | None, also: Collection[str] = ()
) -> None:
    """Check the engine that a server is started with. Options of an engine are refused with a URL, except `also`."""
    if url is None:
        open_model(engine)
    elif given := given_options(context, parameter_names(EngineConfig) - set(also)):
        raise ConfigError(f"{', '.join(given)} cannot be combined with --url: the server has its own")


def first_key(api_key: str | None) -> str | None:
    """Return one key. HOLDFAST_API_KEY may have several, which a server accepts."""
    return api_key.split(",")[0] if api_key else None


def serve_arguments(engine: EngineConfig) -> list[str]:
    """Return the arguments of `holdfast serve`: the model, and every option that is not its default."""
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


def open_model(config: EngineConfig) -> "OpenedModel":
    """Check the settings and the model's files, without torch."""
    from holdfast.engine.start import preflight

    return preflight.open_model(config)


def show_hint(model: str | None) -> None:
    """Say on stderr what a small built-in model understands, if that is the model."""
    from holdfast.cli.console import note
    from holdfast.models.locate import COIN, COIN_ADAPTER, locate

    if model in (COIN, COIN_ADAPTER):
        note(locate(model).about or "")


def open_llm(
    config: EngineConfig, bars: "StageBars | None" = None, opened: "OpenedModel | None" = None
) -> "LLM":
    """Load the model, with a progress bar."""
    opened = opened or open_model(config)
    from holdfast.cli.console import StageBars
    from holdfast.core.garbage_collection import paused_collection
    from holdfast.engine.llm.llm import LLM

    with paused_collection(), bars or StageBars() as progress:
        llm = LLM.from_config(config, progress, opened)
        gc.freeze()  # modules and the model stay; the next collection would visit all of them
    return llm
