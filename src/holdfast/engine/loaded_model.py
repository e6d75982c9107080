"""What `LLM` and `AsyncLLM` share: a model is loaded from a configuration, and has a tokenizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from holdfast.core.garbage_collection import paused_collection
from holdfast.core.options import option_fields, takes_fields_of
from holdfast.engine.chat_tokenizer import ChatTokenizer
from holdfast.engine.compile_ahead import compile_ahead
from holdfast.engine.config import EngineConfig
from holdfast.engine.preflight import OpenedModel, open_model
from holdfast.engine.status import ShowProgress

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_GGUF = "a model is loaded as it is stored; give a .gguf file for quantised weights"
_ONE_GPU = "an engine uses one GPU"
_LEAVE_OUT = "there is nothing to choose; leave it out"
_VLLM_OPTIONS = {  # that mean nothing here: what to give instead
    "gpu_memory_utilization": "use kv_memory, such as kv_memory='20GiB'",
    "kv_cache_memory_bytes": "use kv_memory",
    "seed": "use default_seed, or SamplingParams(seed=...)",
    "enable_prefix_caching": "use prefix_cache",
    "speculative_config": "use speculation",
    "revision": "it is part of the model's name: org/name@revision",
    "trust_remote_code": "code from a model is never run; leave it out",
    "quantization": _GGUF,
    "kv_cache_dtype": _GGUF,
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), _ONE_GPU),
    **dict.fromkeys(("enforce_eager", "block_size", "swap_space", "enable_chunked_prefill"), _LEAVE_OUT),
}


class LoadedModel(ABC):
    """A model that a subclass runs in its own way."""

    config: EngineConfig
    _tokenizer: ChatTokenizer

    @takes_fields_of(EngineConfig)
    def __init__(self, *args: Any, **options: Any) -> None:
        """Load a model: a folder, a GGUF file, a Hugging Face id, a built-in name or the default.

        The other options are the fields of `EngineConfig`. Raises `ModelError` if the model cannot
        be loaded, `ConfigError` if the settings do not fit it. Loading blocks; with asyncio:
        `await asyncio.to_thread(AsyncLLM, model)`.
        """
        _refuse_unknown(type(self).__name__, options)
        self._load(EngineConfig(*args, **options))

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        progress: ShowProgress | None = None,
        opened: OpenedModel | None = None,
    ) -> Self:
        """Load the model a configuration describes.

        progress: called with (stage, done, total) while it loads. opened: the model, if `open_model`
        has opened it already.
        """
        model = cls.__new__(cls)
        model._load(config, progress, opened)
        return model

    def get_tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer: encode, decode, apply_chat_template and their relatives."""
        return self._tokenizer

    @abstractmethod
    def _take(self, engine: "Engine") -> None:
        """Run this engine from now on."""

    def _load(
        self,
        config: EngineConfig,
        progress: ShowProgress | None = None,
        opened: OpenedModel | None = None,
    ) -> None:
        self.config = config
        opened = opened or open_model(config)
        worker = compile_ahead(config, opened.model)
        with paused_collection():
            from holdfast.engine.builder import build  # imports torch, while the worker does

            engine = build(config, progress, opened, worker)
        self._take(engine)
        self._tokenizer = opened.chat_tokenizer


def _refuse_unknown(owner: str, names: Iterable[str]) -> None:
    known = [one.name for one in fields(EngineConfig)]
    known += [alias for one in option_fields(EngineConfig) for alias in one.all_aliases]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = _VLLM_OPTIONS.get(name) or (f"did you mean {near[0]}?" if near else "")
            raise TypeError(f"{owner} has no option {name!r}" + (f": {hint}" if hint else ""))
