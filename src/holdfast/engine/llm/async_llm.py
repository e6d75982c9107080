"""`AsyncLLM`: the answers of one engine, for asyncio."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Unpack

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.engine_thread import RequestHandle
from holdfast.engine.llm.loaded_model import LoadedModel
from holdfast.engine.llm.prompts import (
    ChatOptions,
    Messages,
    PromptInput,
    ReadPrompt,
    chat_prompt,
    params_for_each,
    read_prompt,
)
from holdfast.engine.llm.token_stream import AsyncTokenStream, Finish


class AsyncLLM(LoadedModel):
    """A loaded model and its engine, in a thread of its own, for asyncio.

        async with AsyncLLM("Qwen/Qwen3-0.6B") as llm:
            async for delta in llm.generate("The sea is", SamplingParams(max_tokens=32)):
                print(delta.text, end="")
            result = await llm.chat([{"role": "user", "content": "Hello"}])

    Requests that run at the same time share batches: start many with `asyncio.gather`. Any thread
    and any event loop may call it.
    """

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

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _stream(
        self,
        read: Callable[[], ReadPrompt],
        params: SamplingParams | None,
        sampling_params: SamplingParams | None,
        want_receipt: bool,
    ) -> AsyncTokenStream:
        (one,) = params_for_each(1, params, sampling_params)

        def prepare() -> tuple[RequestHandle, Finish]:
            prompt = read()
            request = self._engine.prepare(prompt.prompt, one, want_receipt=want_receipt)
            return RequestHandle(self._running, [request]), partial(self._finish, request, prompt.text)

        return AsyncTokenStream(prepare, self._tokenizer.token_texts)
