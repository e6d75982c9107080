"""The model and the engine's options. `EngineConfig` is the option group.

A command checks its settings with `open_model` before it imports torch.
"""

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.engine.config import EngineConfig

if TYPE_CHECKING:
    from holdfast.cli.console import StageBars
    from holdfast.engine.llm.llm import LLM
    from holdfast.engine.start.preflight import OpenedModel

MODEL_HELP = "Folder, .gguf file, Hugging Face id or built-in name. Default: the default model."

ModelOption = Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP)]
ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP)]

ENGINE = EngineConfig()


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
