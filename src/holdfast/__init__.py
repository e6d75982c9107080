"""Holdfast: an LLM inference engine that gives the same answer, bit for bit, every time.

`LLM` is imported on first use, so that the packages without tensors, and their tests, do not import torch.
"""

from typing import TYPE_CHECKING, Any

from holdfast.core.results import Choice, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.structured_output import StructuredOutput
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM

__all__ = [
    "LLM",
    "Choice",
    "Result",
    "SamplingParams",
    "Stats",
    "StructuredOutput",
    "Thought",
    "TokenLogprob",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from holdfast.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
