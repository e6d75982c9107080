"""What `LLM` and `AsyncLLM` share: a loaded model, its engine's thread and its tokenizer."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.core.options import takes_fields_of
from holdfast.core.request import Prepared
from holdfast.core.results import Result, decode_result
from holdfast.engine.config import EngineConfig
from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
from holdfast.engine.llm.engine_thread import EngineThread
from holdfast.engine.other_engines import argument_hint
from holdfast.engine.start.compile_ahead import compile_ahead
from holdfast.engine.start.preflight import OpenedModel, open_model
from holdfast.engine.status import ShowProgress
from holdfast.errors import EngineStopped

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


class LoadedModel:
    """A model whose engine runs in a thread. The thread ends when nobody holds the model any more."""

    config: EngineConfig
    _only_while_awaited: ClassVar[bool] = False
    _tokenizer: ChatTokenizer
    _thread: EngineThread | None = None

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
        """Return the model's tokenizer: encode, decode, apply_chat_template and their relatives."""
        return self._tokenizer

    def close(self) -> None:
        """End all requests and free the model's memory. Calls that still run raise `EngineStopped`. It
        waits for a step."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.close()
            self._tokenizer.close()

    @property
    def _running(self) -> EngineThread:
        if self._thread is None:
            raise EngineStopped(f"this {type(self).__name__} is closed; build another one")
        return self._thread

    @property
    def _engine(self) -> "Engine":
        return self._running.engine

    def _take(self, make: Callable[[], "Engine"]) -> None:
        """Make an engine and run it from now on. Its thread must not hold this object."""
        thread = self._thread = EngineThread(make, only_while_awaited=self._only_while_awaited)
        weakref.finalize(self, thread.close).atexit = False  # the thread has an end of its own

    def _finish(self, request: Prepared, prompt: str | None, result: Result) -> Result:
        """Add what a caller reads beside the answer: token texts, the prompt, the request's id."""
        return decode_result(
            result, self._tokenizer.token_texts, prompt=prompt, request_id=str(request.request_id)
        )

    def _load(
        self,
        config: EngineConfig,
        progress: ShowProgress | None = None,
        opened: OpenedModel | None = None,
    ) -> None:
        self.config = config
        opened = opened or open_model(config)
        worker = compile_ahead(config, opened.model)

        def make() -> "Engine":
            from holdfast.engine.start.builder import build  # imports torch, while the worker does

            return build(config, progress, opened, worker)

        self._take(make)
        self._tokenizer = opened.chat_tokenizer


def _refuse_unknown(owner: str, names: Iterable[str]) -> None:
    known = [one.name for one in fields(EngineConfig)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = argument_hint(name, known) or (f"did you mean {near[0]}?" if near else "")
            raise TypeError(f"{owner} has no option {name!r}" + (f": {hint}" if hint else ""))
