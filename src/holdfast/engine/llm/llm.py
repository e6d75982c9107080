"""`LLM`: offline inference. Prompts in, results out, in the order of the prompts."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

from holdfast.core.garbage_collection import frozen_heap
from holdfast.core.pooling import Pooling, PoolingType, truncate_ids
from holdfast.core.request import Prepared
from holdfast.core.results import EmbeddingResult, Result, embedding_result
from holdfast.core.sampling_params import ForcedThoughts, SamplingParams, score_params
from holdfast.engine.input_processor import Prompt
from holdfast.engine.llm.engine_thread import EngineThread, RequestHandle
from holdfast.engine.llm.loaded_model import LoadedModel
from holdfast.engine.llm.prompts import (
    ChatOptions,
    Messages,
    PromptInput,
    ReadPrompt,
    chat_prompt,
    is_batch,
    params_for_each,
    read_prompt,
    read_prompts,
)
from holdfast.engine.llm.token_stream import TokenStream
from holdfast.errors import InvalidRequest, make_error

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.receipts.receipt import Receipt


UseTqdm = bool | Callable[..., Any] | None

_TITLE = "Processed prompts"


@contextmanager
def progress_bar(num_prompts: int, use_tqdm: UseTqdm) -> Iterator[Callable[[Result], None]]:
    """Yields a function to call with each result.

    use_tqdm: True shows a bar, False none. None shows one for several prompts, if stderr is a
    terminal. A callable is used as `tqdm.tqdm` is.
    """
    if not (use_tqdm is None or isinstance(use_tqdm, bool) or callable(use_tqdm)):
        raise InvalidRequest(f"use_tqdm must be true, false or a tqdm class, not {type(use_tqdm).__name__}")
    if use_tqdm is None:
        use_tqdm = num_prompts > 1 and sys.stderr.isatty()
    if use_tqdm is False or num_prompts == 0:
        yield lambda result: None
    elif use_tqdm is True:
        with _rich_bar(num_prompts) as advance:
            yield advance
    else:
        bar = use_tqdm(total=num_prompts, desc=_TITLE, dynamic_ncols=True)
        try:
            yield lambda result: bar.update(1)
        finally:
            bar.close()


@contextmanager
def _rich_bar(num_prompts: int) -> Iterator[Callable[[Result], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    started, num_tokens = time.perf_counter(), 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(_TITLE, total=num_prompts, speed="")

        def advance(result: Result) -> None:
            nonlocal num_tokens
            num_tokens += sum(len(choice.token_ids) for choice in result.choices)
            speed = num_tokens / max(time.perf_counter() - started, 1e-9)
            progress.update(task, advance=1, speed=f"{speed:,.0f} tok/s")

        yield advance


class LLM(LoadedModel):
    """A loaded model and its engine.

        llm = LLM("Qwen/Qwen3-0.6B")
        result = llm.generate("The sea is", SamplingParams(max_tokens=32))[0]

    Several threads may call it; their requests share batches. For asyncio there is `AsyncLLM`.
    """

    _only_while_awaited: ClassVar[bool] = True

    @property
    def engine(self) -> "Engine":
        """The engine, once its thread has done what closed streams and ended calls left to it. Do not
        step it while a call runs."""
        self._running.synchronize()
        return self._running.engine

    @engine.setter
    def engine(self, engine: "Engine") -> None:
        self._take(lambda: engine)

    def run_freely(self) -> EngineThread:
        """Let the engine run also while no caller waits, as in `AsyncLLM`. Returns what runs it."""
        self._running.run_freely()
        return self._running

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = None,
        want_receipts: bool = True,
    ) -> list[Result]:
        """Answer every prompt in one batch: one result for each, in order.

        prompts: a prompt or a list of prompts. A prompt is text, a list of token ids,
            `{"prompt": text}` or `{"prompt_token_ids": ids}`. Text is tokenised without a chat
            template.
        params: the settings of all prompts, or a list with one for each. The default is
            `SamplingParams()`.
        sampling_params: another name of params.
        use_tqdm: show a progress bar on stderr. By default for several prompts in a terminal.
            A class such as `tqdm.tqdm` is used instead of our own bar.
        want_receipts: whether results have a receipt.

        A wrong prompt or setting raises `InvalidRequest` or `PromptTooLong`, and nothing runs. An
        answer that fails later has `Result.error`; the others are complete.
        """
        read = read_prompts(prompts)
        each = params_for_each(len(read), params, sampling_params)
        return self._generate(read, each, use_tqdm, want_receipts)

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        use_tqdm: UseTqdm = None,
        *,
        sampling_params: SamplingParams | None = None,
        want_receipts: bool = True,
        **options: Unpack[ChatOptions],
    ) -> Result: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        want_receipts: bool = True,
        **options: Unpack[ChatOptions],
    ) -> list[Result]: ...

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        want_receipts: bool = True,
        **options: Unpack[ChatOptions],
    ) -> Result | list[Result]:
        """Answer a conversation through the model's chat template, or several in one batch.

        messages: a conversation, `[{"role": "user", "content": "Hello"}]`, or a list of
            conversations.
        params, sampling_params, use_tqdm, want_receipts: as in `generate`.
        options:
            tools: functions the model may call, in OpenAI's form, for a template that takes tools.
                The answer is text: it is not constrained to a call and not parsed.
            add_generation_prompt: end the prompt with the start of an assistant message. By default,
                unless the last message is continued.
            continue_final_message: the answer continues the last message.
            chat_template_kwargs: further variables of the template, such as enable_thinking.

        A conversation gives a `Result`, a list of conversations a list of results. A single result
        can be read as a list of one, too: vLLM returns a list here.
        """
        several = is_batch(messages)
        conversations: Sequence[Any] = messages if several else [messages]
        each = params_for_each(len(conversations), params, sampling_params)
        prompts = [chat_prompt(self._tokenizer, one, **options) for one in conversations]
        results = self._generate(prompts, each, use_tqdm, want_receipts)
        return results if several else results[0]

    def chat_tokens(self, messages: Messages, **options: Unpack[ChatOptions]) -> list[int]:
        """Return a conversation as prompt tokens. The template writes its own special tokens.

        messages: one conversation, as in `chat`.
        options: tools, add_generation_prompt, continue_final_message and chat_template_kwargs, as
            in `chat`.
        """
        return list(chat_prompt(self._tokenizer, messages, **options).prompt)  # type: ignore[arg-type]

    def stream(
        self,
        prompt: PromptInput,
        params: SamplingParams | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        want_receipt: bool = True,
    ) -> TokenStream:
        """Answer one prompt, delta by delta.

            with llm.stream("The sea is", SamplingParams(max_tokens=32)) as stream:
                for delta in stream:
                    print(delta.text, end="")
            print(stream.result.finish_reason)

        prompt: one prompt, in a form that `generate` takes.
        params: its settings. sampling_params is another name.
        want_receipt: whether the result has a receipt.

        A wrong prompt or setting raises here. With n > 1 the deltas of all choices come mixed;
        `delta.index` says whose they are. Closing the stream, leaving the loop or an exception in it
        ends the request. Several streams may be read in turns, and by several threads.
        """
        (one,) = params_for_each(1, params, sampling_params)
        return self._stream(read_prompt(prompt), one, want_receipt)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        want_receipt: bool = True,
        **options: Unpack[ChatOptions],
    ) -> TokenStream:
        """Answer one conversation, delta by delta.

        messages, params, sampling_params, want_receipt: as in `chat` and `stream`.
        options: tools, add_generation_prompt, continue_final_message and chat_template_kwargs, as
            in `chat`.
        """
        (one,) = params_for_each(1, params, sampling_params)
        return self._stream(chat_prompt(self._tokenizer, messages, **options), one, want_receipt)

    def continue_answer(
        self,
        receipt: "Mapping[str, Any] | Receipt",
        *,
        max_tokens: int,
        prompt_token_ids: Sequence[int] | None = None,
        prompt_salt: str | None = None,
        force: bool = False,
    ) -> Result:
        """Continue the deterministic answer of a receipt, with every bit of it checked.

            begun = llm.generate("The sea is", SamplingParams(max_tokens=16, deterministic=True))[0]
            whole = llm.continue_answer(begun.receipt, max_tokens=64)

        The result is the whole answer, the same to the bit as if max_tokens had been this from the
        beginning, with a receipt of its own.

        receipt: as in `Result.receipt`, or read from a file.
        max_tokens: of the whole answer, more than the receipt has. Of several answers, one may have as many.
        prompt_token_ids, prompt_salt: of a receipt without them.
        force: go on although the fingerprints differ.

        An answer that is complete, an ordinary one, and another fingerprint raise `InvalidRequest`.
        If a token or a bit comes out differently, the result has `error`, and `error_code` is
        "guarantee_lost".
        """
        from holdfast.engine.replay import continued_params, require_prompt, sent_of
        from holdfast.receipts.reader import parse_receipt
        from holdfast.receipts.receipt import Receipt

        read = receipt if isinstance(receipt, Receipt) else parse_receipt(receipt)
        prompt = require_prompt(read, prompt_token_ids, prompt_salt)
        params = continued_params(read, max_tokens)
        differences = [] if force else read.differences(self._engine.fingerprint)
        if differences:
            raise InvalidRequest(
                f"the receipt is of another engine ({'; '.join(differences)}), so its bits may not come out here; "
                "use an engine with its fingerprint, or force"
            )
        extension = self._engine.scheduler.config.new_extension
        sent = sent_of(read, prompt, self._engine.tokenizer, params.max_tokens, extension=extension)
        request = self._engine.prepare(prompt, params, sent=sent)
        return self._finish(request, None, self.run_requests([request])[0])

    def score(
        self,
        prompt: Prompt,
        completion: Prompt,
        *,
        deterministic: bool = True,
        think: bool = True,
        forced_thoughts: ForcedThoughts = (),
    ) -> list[float]:
        """Return the logprob of each token of a completion after a prompt.

        They are the bits that were reported when the completion was generated deterministically (by
        a model that thinks: with the same think and forced_thoughts).

        prompt: text or token ids.
        completion: text or token ids. Text is tokenised alone, without special tokens.
        deterministic: compute them with the guarantee.
        think, forced_thoughts: as in `SamplingParams`, for a model that thinks.
        """
        pairs = [(prompt, completion)]
        return self.score_batch(
            pairs, deterministic=deterministic, think=think, forced_thoughts=forced_thoughts
        )[0]

    def score_batch(
        self,
        pairs: Sequence[tuple[Prompt, Prompt]],
        *,
        deterministic: bool = True,
        think: bool = True,
        forced_thoughts: ForcedThoughts = (),
    ) -> list[list[float]]:
        """`score` for many pairs of prompt and completion in one batch, in order.

        pairs: prompts with their completions.
        deterministic, think, forced_thoughts: as in `score`, for all pairs.
        """
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Sequence):
            raise InvalidRequest(f"pairs must be a list of pairs, not {type(pairs).__name__}")
        params = score_params(deterministic=deterministic, think=think, forced_thoughts=forced_thoughts)
        requests = [
            self._engine.prepare(prompt, params, completion=completion, want_receipt=False)
            for prompt, completion in pairs
        ]
        results = self.run_requests(requests)
        for result in results:
            if result.error is not None:
                raise make_error(result.error_code or "", result.error)
        return [
            [one.logprob for one in result.prompt_logprobs or () if one is not None] for result in results
        ]

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        pooling: PoolingType = "last",
        normalize: bool = True,
        dimensions: int | None = None,
        deterministic: bool | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = None,
        think: bool = True,
        forced_thoughts: ForcedThoughts = (),
    ) -> list[EmbeddingResult]:
        """Return the embedding of every prompt, in order: `result.outputs.embedding`, a list of floats.

        prompts: as in `generate`.
        pooling: "last" takes the hidden state of the last token, "mean" the mean over all tokens.
        normalize: divide by the Euclidean norm.
        dimensions: keep only the first ones, before the norm is taken.
        deterministic: the same bits alone and in any batch. None is the engine's default.
        truncate_prompt_tokens: keep the first so many tokens of a longer prompt; -1: as many as fit
            the context.
        use_tqdm: as in `generate`.
        think, forced_thoughts: as in `SamplingParams`, for a model that thinks.

        A wrong prompt or setting raises, and nothing runs.
        """
        pooled = Pooling(pooling, normalize, dimensions)
        params = score_params(deterministic=deterministic, think=think, forced_thoughts=forced_thoughts)
        engine, read = self._engine, read_prompts(prompts)
        with progress_bar(len(read), use_tqdm) as advance:
            requests = []
            for prompt in (one.prompt for one in read):
                ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
                ids = truncate_ids(ids, truncate_prompt_tokens, engine.limits.max_model_len)
                requests.append(engine.prepare(ids, params, pooling=pooled, want_receipt=False))
            results = self.run_requests(requests, advance)
        return [
            embedding_result(request.request_id, result)
            for request, result in zip(requests, results, strict=True)
        ]

    def _generate(
        self,
        prompts: Sequence[ReadPrompt],
        params: Sequence[SamplingParams],
        use_tqdm: UseTqdm,
        want_receipts: bool,
    ) -> list[Result]:
        with progress_bar(len(prompts), use_tqdm) as advance:
            requests = [
                self._engine.prepare(prompt.prompt, one, want_receipt=want_receipts)
                for prompt, one in zip(prompts, params, strict=True)
            ]
            results = self.run_requests(requests, advance)
        return [
            self._finish(request, prompt.text, result)
            for request, prompt, result in zip(requests, prompts, results, strict=True)
        ]

    def _stream(self, prompt: ReadPrompt, params: SamplingParams, want_receipt: bool) -> TokenStream:
        request = self._engine.prepare(prompt.prompt, params, want_receipt=want_receipt)
        finish = partial(self._finish, request, prompt.text)
        return TokenStream(RequestHandle(self._running, [request]), self._tokenizer.token_texts, finish)

    def run_requests(
        self, requests: Sequence[Prepared], on_result: Callable[[Result], None] | None = None
    ) -> list[Result]:
        """Run requests of this engine (`Engine.prepare`) until all have ended. An interrupt ends them."""
        handle = RequestHandle(self._running, requests, wants_deltas=False)
        results: dict[int, Result] = {}
        try:
            with frozen_heap():
                handle.start()
                while len(results) < len(requests):
                    output = handle.read()
                    assert output.result is not None
                    results[output.request_id] = output.result
                    if on_result is not None:
                        on_result(output.result)
        except BaseException:  # an interrupt must not leave requests running
            handle.cancel()
            raise
        return [results[request.request_id] for request in requests]
