"""What `LLM` and `AsyncLLM` share: a model is loaded from a configuration, and has a tokenizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from holdfast.core.garbage_collection import paused_collection
from holdfast.core.options import takes_fields_of
from holdfast.core.other_engines import argument_hint
from holdfast.engine.chat_tokenizer import ChatTokenizer
from holdfast.engine.compile_ahead import compile_ahead
from holdfast.engine.config import EngineConfig
from holdfast.engine.preflight import OpenedModel, open_model
from holdfast.engine.status import ShowProgress

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


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
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = argument_hint(name, known) or (f"did you mean {near[0]}?" if near else "")
            raise TypeError(f"{owner} has no option {name!r}" + (f": {hint}" if hint else ""))
