"""Holdfast: an LLM inference engine that gives the same answer, bit for bit, every time.

    from holdfast import LLM, SamplingParams

    llm = LLM()
    result = llm.chat([{"role": "user", "content": "What is a holdfast?"}],
                      SamplingParams(max_tokens=64, deterministic=True))

`LLM` and `AsyncLLM` are imported on first use, so that the packages without tensors, and their
tests, do not import torch. Errors are in `holdfast.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.logprobs import Logprob
from holdfast.core.results import (
    Choice,
    CompletionOutput,
    Delta,
    EmbeddingOutput,
    EmbeddingResult,
    Result,
    Stats,
    Thought,
)
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.structured_output import StructuredOutput
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.engine.llm.async_llm import AsyncLLM
    from holdfast.engine.llm.llm import LLM
    from holdfast.engine.llm.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM",
    "AsyncLLM",
    "Choice",
    "CompletionOutput",
    "Delta",
    "EmbeddingOutput",
    "EmbeddingResult",
    "Logprob",
    "Result",
    "SamplingParams",
    "Stats",
    "StructuredOutput",
    "TextPrompt",
    "Thought",
    "TokenLogprob",
    "TokensPrompt",
    "__version__",
]

_LAZY = {
    "AsyncLLM": "holdfast.engine.llm.async_llm",
    "LLM": "holdfast.engine.llm.llm",
    "TextPrompt": "holdfast.engine.llm.prompts",
    "TokensPrompt": "holdfast.engine.llm.prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
