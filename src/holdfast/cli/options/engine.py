"""The model and the engine's options. `EngineConfig` is the option group."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.engine.config import EngineConfig

if TYPE_CHECKING:
    from holdfast.cli.console import StageBars
    from holdfast.engine.llm import LLM

MODEL_HELP = "Folder, .gguf file, Hugging Face id or built-in name. Default: the default model."

ModelOption = Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP, show_default=False)]
ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]

ENGINE = EngineConfig()


def open_llm(config: EngineConfig, bars: "StageBars | None" = None) -> "LLM":
    """Load the model, with a progress bar."""
    from holdfast.cli.console import StageBars
    from holdfast.engine.llm import LLM

    with bars or StageBars() as progress:
        return LLM.from_config(config, progress)
