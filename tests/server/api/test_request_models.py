"""Request models refuse unknown fields, other types and values out of range, in OpenAI's words; no server runs.

The ranges are those of `SamplingParams`, which has the table of bad values (`core/test_params`).
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import annotated_types
import pytest
from pydantic import BaseModel

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.other_engines import answers
from holdfast.errors import InvalidRequest
from holdfast.server.api.sampling import prompt_list
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    ReplayRequest,
    ScoreRequest,
    TokenizeRequest,
)
from holdfast.server.errors import ApiError
from holdfast.server.http.body import parse_body

Case = tuple[dict[str, Any], str, str]  # fields, param, code
MESSAGE = {"role": "user", "content": "a"}

COMPLETION: list[Case] = [
    ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),  # llama.cpp: one prompt
    ({"prompt": [[1], "a", {"prompt_string": "a"}]}, "prompt[2]", "invalid_type"),
    ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
    ({"prompt": [2**63]}, "prompt[0]", "invalid_value"),
    ({"n": 10**9}, "n", "invalid_value"),  # CVE-2026-34756
    ({"best_of": 10**6}, "best_of", "invalid_value"),  # CVE-2024-8939
    ({"max_tokens": 2**63}, "max_tokens", "invalid_value"),
    *[({"prompt_logprobs": bad}, "prompt_logprobs", "invalid_value") for bad in (-1, 21, 2**64)],
    *[
        ({"truncate_prompt_tokens": bad}, "truncate_prompt_tokens", "invalid_value")
        for bad in (0, -2, 1 << 25)
    ],
    *[({"cache_salt": bad}, "cache_salt", "invalid_value") for bad in ("", "x" * 257)],
    *[({"request_id": bad}, "request_id", "invalid_value") for bad in ("", "a b", "a\n", "é", "x" * 65)],
    *[({"priority": bad}, "priority", "invalid_value") for bad in (1, -1, 10**30)],
    (
        {"stream_options": {"continuous_usage_stats": 1}},
        "stream_options.continuous_usage_stats",
        "invalid_type",
    ),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"allowed_token_ids": [5] * 500_000}, "allowed_token_ids", "invalid_value"),
    ({"model": "a" * 5_000_000}, "model", "invalid_value"),
]
CHAT: list[Case] = [
    *[({"reasoning_effort": bad}, "reasoning_effort", "invalid_value") for bad in ("", "hgih", 0.5)],
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": ""}] * 2049}, "messages", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs", "invalid_value"),
]


def function(name: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS: list[Case] = [
    ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tools": [{**function(), "x": 1}]}, "tools[0].x", "unknown_parameter"),
    ({"tools": [function(), function(strictly=True)]}, "tools[1].function.strictly", "unknown_parameter"),
    ({"tools": [function(), function(None)]}, "tools[1].function.name", "invalid_type"),
    *[
        ({"tools": [function(bad)]}, "tools[0].function.name", "invalid_value")
        for bad in ("", "a b", "a" * 65)
    ],
    *[
        ({"tools": [function(**{name: bad})]}, f"tools[0].function.{name}", "invalid_type")
        for name, bad in (("description", 3), ("strict", "yes"), ("parameters", []), ("parameters", "{}"))
    ],
    ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
    (
        {"tool_choice": {"type": "function", "name": "a"}},
        "tool_choice.function",
        "missing_required_parameter",
    ),
    ({"tool_choice": function(1)}, "tool_choice.function.name", "invalid_type"),
    ({"tool_choice": function(x=1)}, "tool_choice.function.x", "unknown_parameter"),
    ({"tool_choice": {**function(), "x": 1}}, "tool_choice.x", "unknown_parameter"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice", "unsupported_value"),
]
# Fields of other servers: programs of the client (CVE-2025-62164: prompt_embeds; CVE-2026-7304:
# custom_logit_processor; CVE-2025-61620: chat_template), negative lengths of llama.cpp (CVE-2026-21869:
# n_discard; #3550: n_keep; vLLM #6521).


def refusal(fields: dict[str, Any], model: type[BaseModel]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps(fields).encode(), model)
    assert caught.value.status == 400 and len(caught.value.message) < 1000
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "code"), COMPLETION, ids=[f"{one:.40}" for one in map(str, COMPLETION)]
)
def test_bad_completion_fields_are_refused(fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal({"prompt": "a", **fields}, CompletionRequest)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(("fields", "param", "code"), [*CHAT, *TOOLS], ids=lambda one: f"{one!s:.40}")
def test_bad_chat_fields_are_refused(fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal({"messages": [MESSAGE], **fields}, ChatCompletionRequest)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("fields", "model", "param"),
    [
        ({"tokens": None}, DetokenizeRequest, "tokens"),
        ({"receipt": "x"}, ReplayRequest, "receipt"),
        ({"prompt": "a"}, ScoreRequest, "completion"),
        ({}, EmbeddingRequest, "input"),
        ({"input": [1.5]}, EmbeddingRequest, "input[0]"),
        ({"input": "a", "dimensions": 0}, EmbeddingRequest, "dimensions"),
        ({"prompt": 7}, TokenizeRequest, "prompt"),
    ],
)
def test_bad_fields_of_other_routes_are_refused(
    fields: dict[str, Any], model: type[BaseModel], param: str
) -> None:
    assert refusal(fields, model).param == param


@pytest.mark.parametrize("prompts", [["a", [1, 2]], [[1, 2], "a"]])
def test_prompts_may_be_texts_and_token_ids(prompts: Any) -> None:
    """llama.cpp tools/server/tests/unit/test_completion.py::test_completion_with_tokens_input."""
    body = parse_body(json.dumps({"prompt": prompts}).encode(), CompletionRequest)
    assert prompt_list(body.prompt, 2, "prompt") == prompts
    inputs = parse_body(json.dumps({"input": prompts}).encode(), EmbeddingRequest).input
    assert prompt_list(inputs, 2, "input") == prompts


def test_fields_of_other_servers_are_answered_with_ours() -> None:
    ours = {
        *ChatCompletionRequest.model_fields,
        *CompletionRequest.model_fields,
        *TokenizeRequest.model_fields,
    }
    for field, answer in answers("fields").items():
        outer, _, inner = field.partition(".")
        error = refusal({"messages": [MESSAGE], outer: {inner: 1} if inner else 1}, ChatCompletionRequest)
        assert (error.param, error.code) == (field, "unknown_parameter") and answer in error.message
        named = re.match(r"use (\w+)", answer)
        assert named is None or named[1] in ours, answer


def bounds() -> Iterator[tuple[str, type, str, float]]:
    """(field, its type, kind of bound, bound) of every setting that `SamplingParams` has, too."""
    for name, field in GenerationRequest.model_fields.items():
        if name in ("prompt_logprobs", "priority"):  # OpenAI's limit of logprobs; no setting
            continue
        kind = int if field.annotation == int | None else float
        for one in field.metadata:
            for sign in ("ge", "gt", "le"):
                if isinstance(one, getattr(annotated_types, sign.capitalize())):
                    yield name, kind, sign, getattr(one, sign)


@pytest.mark.parametrize(("name", "kind", "sign", "bound"), [*bounds()])
def test_ranges_are_those_of_sampling_params(name: str, kind: type, sign: str, bound: Any) -> None:
    """Otherwise a value would be valid in Python and refused over HTTP, or get another message."""
    if kind is int:
        beyond = bound + (1 if sign == "le" else -1)
    else:
        beyond = bound if sign == "gt" else math.nextafter(bound, math.inf if sign == "le" else -math.inf)
    if sign != "gt":
        parse_body(json.dumps({"prompt": "a", name: bound}).encode(), CompletionRequest)
        more = {"max_tokens": bound} if name == "min_tokens" else {}
        SamplingParams(**{**more, **({"echo": True} if bound == 0 else {}), name: bound})
    error = refusal({"prompt": "a", name: beyond}, CompletionRequest)
    assert (error.param, error.code) == (name, "invalid_value")
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**{name: beyond})
