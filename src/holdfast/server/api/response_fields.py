"""Response fields that several routes share: usage, logprobs, and the `holdfast` object."""

import math
from collections.abc import Sequence
from typing import Any

from holdfast.core.results import Delta, Result
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.model_fields import ModelFields
from holdfast.server.api.schema.objects import (
    ChatCompletionLogprobs,
    ChatCompletionTokenLogprob,
    CompletionLogprobs,
    CompletionTokensDetails,
    HoldfastDetails,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    RequestDetails,
    TokenCounts,
    TopLogprob,
    Usage,
)
from holdfast.server.api.schema.requests import StreamOptions
from holdfast.server.call import Call
from holdfast.server.http.sse import DONE, sse_event
from holdfast.server.prompts import PromptReader
from holdfast.text.detokenizer import Detokenizer

_MIN_LOGPROB = -9999.0  # OpenAI's value for an impossible token


def usage(call: Call, num_reasoning_tokens: int | None = None) -> Usage:
    """Return the tokens of a finished response. num_reasoning_tokens: those of thinking that is separated."""
    reasoning = None if num_reasoning_tokens is None else CompletionTokensDetails(num_reasoning_tokens)
    return Usage(*_token_counts(call), PromptTokensDetails(num_cached_tokens(call)), reasoning)


def num_cached_tokens(call: Call) -> int:
    """Return the prompt tokens of a finished response that were in the prefix cache."""
    return min(call.num_prompt_tokens, sum(result.stats.cached_tokens for result in call.results))


def _token_counts(call: Call) -> tuple[int, int, int]:
    """Return the tokens of the prompt, of the answers so far, and of both."""
    prompt, completion = call.num_prompt_tokens, call.num_completion_tokens
    return prompt, completion, prompt + completion


def holdfast_object(call: Call, **model_fields: Any) -> HoldfastDetails:
    """Return the determinism mode, the seed and the stats. For a batch of prompts: of all together, and of each one."""
    results = call.results
    return HoldfastDetails(
        call.mode,
        results[0].seed,
        call.stats,
        results[0].receipt if len(results) == 1 else None,
        [_request_details(result) for result in results] if len(results) > 1 else None,
        **model_fields,
    )


def _request_details(result: Result) -> RequestDetails:
    return RequestDetails(result.determinism, result.seed, result.stats, result.receipt)


def matched_stop(delta: Delta, token_ids: Sequence[int]) -> str | int | None:
    """Return what ended a choice with these tokens, as SGLang names it: a stop string, a stop token, or the
    end-of-text token, which is no `stop_reason`."""
    if delta.finish_reason == "stop" and delta.stop_reason is None and token_ids:
        return token_ids[-1]
    return delta.stop_reason


class ChunkWriter:
    """Writes the chunks of a stream. head: the fields that all of them have.

    Without `include_usage` they have no field `usage`. With it, it is null, or with `continuous_usage_stats` the
    counts so far. A chunk has those of the model's fields that were not sent yet.
    """

    def __init__(
        self, call: Call, head: dict[str, Any], options: StreamOptions | None, model_fields: ModelFields
    ) -> None:
        self._call = call
        self._head = head
        self._model_fields = model_fields
        self._has_usage = options is not None and bool(options.include_usage)
        self._is_continuous = self._has_usage and bool(options and options.continuous_usage_stats)

    def chunk(self, choice: dict[str, Any], **fields: Any) -> bytes:
        model_fields = self._model_fields.of_chunk()
        return sse_event({**self._head, "choices": [choice], **self._usage(), **model_fields, **fields})

    def end(self, last: dict[str, Any], num_reasoning_tokens: int | None = None) -> bytes:
        """Return the last chunk, once all results are known, with the `holdfast` object. The usage comes after it, and
        has that object then."""
        details = {"holdfast": holdfast_object(self._call, **self._model_fields.rest())}
        if not self._has_usage:
            return sse_event({**self._head, "choices": [last], **details}) + DONE
        counts = usage(self._call, num_reasoning_tokens)
        end = sse_event({**self._head, "choices": [last], **self._usage()})
        return end + sse_event({**self._head, "choices": [], "usage": counts, **details}) + DONE

    def _usage(self) -> dict[str, Any]:
        if not self._has_usage:
            return {}
        return {"usage": TokenCounts(*_token_counts(self._call)) if self._is_continuous else None}


def prompt_logprobs(prompts: PromptReader, result: Result, num_top: int) -> PromptLogprobs:
    """Return the logprobs of a prompt in vLLM's format: for every token an object by token id, with the
    token itself and the most likely ones. The first token has none.

    The rank of a token that is not among the most likely ones is not known.
    """

    def entry(one: TokenLogprob) -> dict[str, PromptLogprob]:
        ranks = {id_: rank for rank, (id_, _) in enumerate(one.top, 1)}
        values = {one.token_id: one.logprob, **dict(one.top[:num_top])}
        return {
            str(id_): PromptLogprob(finite(value), ranks.get(id_), prompts.token_text(id_))
            for id_, value in values.items()
        }

    return [None if one is None else entry(one) for one in result.prompt_logprobs or ()]


def chat_logprobs(
    prompts: PromptReader, logprobs: Sequence[TokenLogprob], *, as_ids: bool = False
) -> ChatCompletionLogprobs:
    """Return logprobs in the format of chat completions. as_ids: tokens are written as token_id:123."""

    def entry(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        raw = prompts.tokenizer.token_bytes(token_id)
        token = _id_name(token_id) if as_ids else raw.decode("utf-8", "replace")
        return token, finite(logprob), list(raw)

    content = [
        ChatCompletionTokenLogprob(
            *entry(one.token_id, one.logprob), [TopLogprob(*entry(*best)) for best in one.top]
        )
        for one in logprobs
    ]
    return ChatCompletionLogprobs(content, None)


class TextLogprobs:
    """Logprobs in the format of completions, with the offset of every token in the text.

    A token that continues a character has the offset of that character. The top logprobs of a token
    always have the token itself, first; of other tokens with the same text only the most likely one. as_ids:
    tokens are written as token_id:123.
    """

    def __init__(
        self,
        prompts: PromptReader,
        num_top: int,
        prompt_ids: Sequence[int] = (),
        *,
        as_ids: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._prompts = prompts
        self._num_top = num_top
        self._name = _id_name if as_ids else prompts.token_text
        self._text = Detokenizer(prompts.tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def write(
        self, logprobs: Sequence[TokenLogprob | None], first_id: int = 0, echoed: str | None = None
    ) -> CompletionLogprobs:
        """Format logprobs. None is the prompt's first token, first_id, which has no logprob. echoed: the
        whole text with its prompt, which has the special tokens that the client typed and no others."""
        ids = [first_id if one is None else one.token_id for one in logprobs]
        offsets = []
        for token_id in ids:
            offsets.append(self._offset)
            if echoed is not None and token_id in self._prompts.tokenizer.special_ids:
                name = self._prompts.token_text(token_id)
                self._offset += len(name) if echoed.startswith(name, self._offset) else 0
            else:
                self._offset += len(self._text.push(token_id))
        return CompletionLogprobs(
            [self._name(token_id) for token_id in ids],
            [None if one is None else finite(one.logprob) for one in logprobs],
            [None if one is None else self._top(one) for one in logprobs],
            offsets,
        )

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        entries = {self._name(one.token_id): finite(one.logprob)}
        for token_id, logprob in one.top[: self._num_top]:
            entries.setdefault(self._name(token_id), finite(logprob))
        return entries


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def finite(logprob: float) -> float:
    """Replace infinity, which JSON does not have, with OpenAI's minimum."""
    return logprob if math.isfinite(logprob) else _MIN_LOGPROB
