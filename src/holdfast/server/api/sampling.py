"""Builds prompts and `SamplingParams` from a body's fields, and submits the rest of an answer.

`SamplingParams` and the server's limits validate the values.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.results import Delta
from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.sent import Sent
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.api.model_fields import read_fields
from holdfast.server.api.schema.requests import (
    GenerationRequest,
    ObjectFormat,
    Prompts,
    SchemaFormat,
    StructuredOutputs,
    TextFormat,
)
from holdfast.server.call import Call
from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError, invalid_value
from holdfast.server.frontend import Frontend
from holdfast.text.detokenizer import Detokenizer

_SAME_NAMES = (
    *("min_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop_token_ids", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "allowed_token_ids", "bad_words"),
    *("skip_special_tokens", "include_stop_str_in_output", "logprob_token_ids"),
)
_MAX_NAMED = 8  # keys in an error message


def parse_structured_output(body: GenerationRequest) -> StructuredOutput | None:
    """Return the structured output a body asks for, if any. Raises `InvalidRequest` for two, or for an invalid one."""
    fields: dict[str, dict[str, Any]] = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_kinds(body.structured_outputs),
        "guided_json": {"json_schema": body.guided_json},
        "guided_regex": {"regex": body.guided_regex},
        "guided_choice": {"choice": body.guided_choice},
        "guided_grammar": {"lark": body.guided_grammar},
        "json_schema": {"json_schema": body.json_schema},
        "regex": {"regex": body.regex},
    }
    asked = {name: kinds for name, kinds in fields.items() if any(one is not None for one in kinds.values())}
    if len(asked) > 1:
        raise InvalidRequest(
            f"{' and '.join(asked)} cannot be combined; a request can have one structured output"
        )
    for kinds in asked.values():
        return StructuredOutput(**{kind: value for kind, value in kinds.items() if value is not None})
    return None


def _of_format(asked: TextFormat | ObjectFormat | SchemaFormat | None) -> dict[str, Any]:
    if isinstance(asked, SchemaFormat):
        return {"json_schema": asked.json_schema.schema_}
    if isinstance(asked, ObjectFormat):  # any object fits an empty schema
        return {"json_schema": asked.schema_} if asked.schema_ else {"json_object": True}
    return {}


def _of_kinds(asked: StructuredOutputs | None) -> dict[str, Any]:
    if asked is None:
        return {}
    json_object = asked.json_object or None
    kinds = {"json_schema": asked.json_, "json_object": json_object, "regex": asked.regex}
    return {**kinds, "choice": asked.choice, "lark": asked.grammar}


def sampling_params(
    body: GenerationRequest,
    config: ServerConfig,
    *,
    max_tokens: int,
    structured: StructuredOutput | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    echo: bool = False,
) -> SamplingParams:
    """Return the sampling parameters. Raises `InvalidRequest` or `ApiError` if a value is invalid."""
    given: dict[str, Any] = {
        name: getattr(body, name) for name in _SAME_NAMES if getattr(body, name) is not None
    }
    if body.stop is not None:
        given["stop"] = body.stop
        if not isinstance(body.stop, str) and len(body.stop) > config.max_stops:
            message = f"stop may have at most {config.max_stops} strings, not {len(body.stop)}"
            raise ApiError(400, message, param="stop", code="invalid_value")
    if body.logit_bias is not None:
        given["logit_bias"] = _biases(body.logit_bias)
    given |= read_fields(body)
    if given.get("n", 1) > config.max_choices:
        raise ApiError(
            400, f"n must be at most {config.max_choices}, not {given['n']}", param="n", code="invalid_value"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        structured=structured,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
        deterministic=body.deterministic,
        **given,
    )


def refuse_contradictions(body: GenerationRequest) -> None:
    """Refuse fields of both completion routes that cannot be used together."""
    if body.stream_options is not None and not body.stream:
        raise invalid_value("stream_options", "it requires stream to be true")
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(
            400,
            "prompt_logprobs cannot be streamed, because they are known only at the end; omit stream",
            param="prompt_logprobs",
            code="unsupported_value",
        )


def max_prompt_len(frontend: Frontend) -> int:
    """Return the largest number of tokens of a prompt with its answer."""
    return frontend.ready.max_len


def truncate_prompt(body: GenerationRequest, ids: list[int], room: int) -> list[int]:
    """Return the last tokens of a prompt, or the first: as many as the body says, or as there is room for."""
    if body.truncate_prompt_tokens is None:
        return ids
    length = max(1, room if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens)
    return ids[:length] if body.truncation_side == "right" else ids[-length:]


def prompt_list(value: Prompts, max_prompts: int, param: str) -> list[str | list[int]]:
    """Return the prompts of a field that is one prompt or a batch, each a text or token ids. A list of numbers is
    one prompt. param is the field's name."""
    if isinstance(value, str):
        return [value]
    if not value:
        raise invalid_value(param, "it is empty; it must have at least one token")
    if isinstance(value[0], int):
        return [[one for one in value if isinstance(one, int)]]
    if len(value) > max_prompts:
        raise invalid_value(param, f"it has {len(value)} prompts; at most {max_prompts} are allowed")
    return [one for one in value if not isinstance(one, int)]


async def submit_sent(
    call: Call,
    body: GenerationRequest,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    sent: tuple[Sent, ...],
) -> None:
    """Send the engine a request with its answers so far. Wait until they are confirmed."""
    await call.submit(
        prompt_ids, params, want_receipt=bool(body.return_receipt), cache_salt=body.cache_salt, sent=sent
    )
    await call.accepted()


async def submit_rest(
    frontend: Frontend,
    call: Call,
    body: GenerationRequest,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    token_ids: Sequence[int],
) -> Delta:
    """Send the engine a request of whose answer the client has these tokens. Wait until they are confirmed.

    They are candidates of a deterministic answer. An ordinary one goes on after them. Return what the
    client has, as a delta.
    """
    size = 8 * (len(prompt_ids) + len(token_ids))
    given = await call.run(
        lambda token: _given_answer(frontend, body, prompt_ids, params, token_ids), size=size
    )
    sent = Sent()
    sent.add(given)
    await submit_sent(call, body, prompt_ids, params, (sent,))
    return given


def _given_answer(
    frontend: Frontend,
    body: GenerationRequest,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    token_ids: Sequence[int],
) -> Delta:
    """Return what a client has of an answer. No logprob is known. Slow: call it in a thread."""
    ready, num_tokens = frontend.ready, len(token_ids)
    keeps_bits = frontend.defaults.is_deterministic(params.deterministic)
    for param, is_wrong, why in (
        ("n", params.n > 1, "only one answer can be continued from token ids"),
        ("echo", params.echo, "an answer goes on without its prompt"),
        (
            "seed",
            params.temperature > 0 and params.seed is None and frontend.defaults.seed is None,
            "an answer that was sampled needs its seed",
        ),
        (
            "return_receipt",
            bool(body.return_receipt) and not keeps_bits,
            "the logprobs of the given tokens are not known, so there is no receipt of an ordinary answer",
        ),
        (
            "request",
            ready.extension is not None,
            "an answer of this model can only be continued from its receipt",
        ),
        (
            "token_ids",
            num_tokens >= params.max_tokens,
            f"it has {num_tokens} tokens and max_tokens is {params.max_tokens}; ask for more tokens",
        ),
        (
            "token_ids",
            max(token_ids, default=0) >= ready.vocab_size,
            f"{max(token_ids, default=0)} is not in the vocabulary of {ready.vocab_size} tokens",
        ),
    ):
        if is_wrong:
            raise invalid_value(param, why)
    frontend.prompts.require_room(len(prompt_ids) + num_tokens)
    tokenizer = frontend.prompts.tokenizer
    known = [id_ for id_ in token_ids if id_ < tokenizer.vocab_size]
    text = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens).extend(known)
    return Delta(text, tuple(token_ids), token_logprobs=(math.nan,) * num_tokens)


def _biases(given: Mapping[str, float]) -> list[tuple[int, float]]:
    bad = [key for key in given if not key.isascii() or not key.isdigit() or len(key) > 10]
    if bad:
        named = ", ".join(map(show, bad[:_MAX_NAMED])) + (", ..." if len(bad) > _MAX_NAMED else "")
        why = f"its keys must be token ids, as strings; these are none: {named}; POST /tokenize has a text's ids"
        raise invalid_value("logit_bias", why)
    return [(int(key), bias) for key, bias in given.items()]
