"""Train and evaluate models that think while they read: tasks with gold thoughts, the model in its
parallel form, the training loop, evaluation with the serving engine.

    from holdfast_thinking import PRESETS, train_model

    train_model("boxes", PRESETS["short"], examples=[{"prompt": .., "answer": ..}, ..])

`holdfast train` and `holdfast eval` load it by name. It imports `holdfast`, never the reverse.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast_thinking.settings import PRESETS, TrainingSettings

if TYPE_CHECKING:
    from holdfast_thinking.run.loop import train_model

__all__ = ["PRESETS", "TrainingSettings", "train_model"]


def __getattr__(name: str) -> Any:
    """Import `train_model`, and torch with it, on first use."""
    if name != "train_model":
        raise AttributeError(f"module 'holdfast_thinking' has no attribute {name!r}")
    return import_module("holdfast_thinking.run.loop").train_model
