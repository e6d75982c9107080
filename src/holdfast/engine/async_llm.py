"""`AsyncLLM`: the answers of one engine, for asyncio."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.core.request import Prepared
from holdfast.core.results import Delta, Result, decode_delta, decode_result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.async_engine import AsyncEngine, RequestHandle
from holdfast.engine.chat_tokenizer import ChatTokenizer
from holdfast.engine.loaded_model import LoadedModel
from holdfast.engine.prompts import (
    ChatOptions,
    Messages,
    PromptInput,
    ReadPrompt,
    chat_prompt,
    choose_params,
    params_for_each,
    read_prompt,
)
from holdfast.errors import make_error

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


class AsyncTokenStream(AsyncIterator[Delta]):
    """The answer to one prompt: iterate over it for deltas, or await it for the result.

    The prompt is read and the request starts with the first `anext` or `await`; a wrong prompt
    raises there. Cancelling the task that reads it, leaving its loop or `aclose` ends the request.
    An answer that ends in an error raises it after the last delta; awaited, it is a result with
    `error`.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: ChatTokenizer,
        read: Callable[[], ReadPrompt],
        params: SamplingParams,
        *,
        want_receipt: bool,
    ) -> None:
        self.result: Result | None = None
        self._engine = engine
        self._tokenizer = tokenizer
        self._read = read
        self._params = params
        self._want_receipt = want_receipt
        self._text: str | None = None
        self._handle: RequestHandle | None = None
        self._is_closed = False

    async def __anext__(self) -> Delta:
        """The next delta. Raises `StopAsyncIteration` at the end, and once it is closed."""
        delta = await self._next_delta()
        if delta is not None:
            return decode_delta(delta, self._tokenizer.token_texts)
        if self.result is not None and self.result.error is not None and not self._is_closed:
            self._is_closed = True
            raise make_error(self.result.error_code or "", self.result.error)
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def aclose(self) -> None:
        """End the request, if it has not ended. The stream gives no further delta."""
        self._close()

    async def _wait(self) -> Result:
        """Read to the end."""
        while await self._next_delta() is not None:
            pass
        if self.result is None:
            raise asyncio.InvalidStateError("the stream was closed before its answer ended")
        return self.result

    async def _next_delta(self) -> Delta | None:
        if self._is_closed or self.result is not None:
            return None
        try:
            if self._handle is None:
                self._handle = await self._start()
            delta = await self._handle.next_delta()
            if delta is None:
                assert self._handle.result is not None
                self.result = decode_result(
                    self._handle.result,
                    self._tokenizer.token_texts,
                    prompt=self._text,
                    request_id=str(self._handle.request_id),
                )
            return delta
        except BaseException:  # the reader was cancelled, or the engine has stopped
            self._close()
            raise

    async def _start(self) -> RequestHandle:
        """Tokenise, render templates and compile grammars in another thread; then queue the request."""
        return self._engine.start(await asyncio.to_thread(self._prepare))

    def _prepare(self) -> Prepared:
        prompt = self._read()
        self._text = prompt.text
        return self._engine.engine.prepare(prompt.prompt, self._params, want_receipt=self._want_receipt)

    def _close(self) -> None:
        self._is_closed = True
        if self._handle is not None and self._handle.result is None:
            self._handle.cancel()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_is_closed"):
            self._close()


class AsyncLLM(LoadedModel):
    """A loaded model and its engine, in a thread of its own, for asyncio.

        async with AsyncLLM("Qwen/Qwen3-0.6B") as llm:
            async for delta in llm.generate("The sea is", SamplingParams(max_tokens=32)):
                print(delta.text, end="")
            result = await llm.chat([{"role": "user", "content": "Hello"}])

    Requests that run at the same time share batches: start many with `asyncio.gather`. Any thread
    and any event loop may call it.
    """

    def _take(self, engine: "Engine") -> None:
        self._engine = AsyncEngine(engine)

    def generate(
        self,
        prompt: PromptInput,
        params: SamplingParams | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        want_receipt: bool = True,
    ) -> AsyncTokenStream:
        """Answer one prompt: `async for delta in llm.generate(...)`, or `await` it for the result.

        prompt: text, a list of token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`. Text
            is tokenised without a chat template.
        params: its settings; the default is `SamplingParams()`. sampling_params is another name.
        want_receipt: whether the result has a receipt.
        """
        return self._stream(lambda: read_prompt(prompt), params, sampling_params, want_receipt)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        want_receipt: bool = True,
        **options: Unpack[ChatOptions],
    ) -> AsyncTokenStream:
        """Answer one conversation: `result = await llm.chat(messages)`, or iterate over the deltas.

        messages: `[{"role": "user", "content": "Hello"}]`.
        params, sampling_params, want_receipt: as in `generate`.
        options: tools, add_generation_prompt, continue_final_message and chat_template_kwargs, as
            in `LLM.chat`.
        """
        read = partial(chat_prompt, self._tokenizer, messages, **options)
        return self._stream(read, params, sampling_params, want_receipt)

    def _stream(
        self,
        read: Callable[[], ReadPrompt],
        params: SamplingParams | None,
        sampling_params: SamplingParams | None,
        want_receipt: bool,
    ) -> AsyncTokenStream:
        (one,) = params_for_each(1, choose_params(params, sampling_params))
        return AsyncTokenStream(self._engine, self._tokenizer, read, one, want_receipt=want_receipt)

    def close(self) -> None:
        """End all requests with `EngineStopped`, and the engine's thread. It waits for a step."""
        self._engine.close()
        self._tokenizer.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
