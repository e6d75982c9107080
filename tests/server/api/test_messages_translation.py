"""Bodies of /v1/messages are read as the chat completion request with the same prompt and settings, or
refused with the field's name; no server runs."""

import json
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.api.anthropic.objects import tool_use_id
from holdfast.server.api.anthropic.requests import CountTokensRequest, MessagesRequest
from holdfast.server.api.anthropic.translation import ERROR_WORDS, to_chat, to_chat_prompt
from holdfast.server.api.sampling import parse_structured_output
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage
from holdfast.server.errors import ApiError
from holdfast.server.http.body import parse_body

USER = {"role": "user", "content": "a"}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "é"}}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def text(one: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": one, **fields}


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def translated(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [USER], "max_tokens": 5, **fields}
    return to_chat(parse_body(json.dumps(body).encode(), MessagesRequest))


def messages(turns: Any, **fields: Any) -> list[dict[str, Any]]:
    return [one.model_dump(exclude_unset=True) for one in translated(messages=turns, **fields).messages]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([USER], [USER]),
        ([turn("user", text("a", cache_control={"type": "ephemeral"}), text("b"))], [{"role": "user", "content": "a\nb"}]),
        ([USER, USER], [{"role": "user", "content": "a\na"}]),
        (
            [USER, turn("assistant", text("b"), text("c")), USER],
            [USER, {"role": "assistant", "content": "b\nc"}, USER],
        ),
        (
            [USER, turn("assistant", text("wait"), TOOL_USE), turn("user", RESULT)],
            [
                USER,
                {"role": "assistant", "content": "wait", "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "sunny", "tool_call_id": "t1"},
            ],
        ),
        (
            [USER, turn("assistant", TOOL_USE), turn("user", {**RESULT, "is_error": True}, text("b"))],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "Error: sunny", "tool_call_id": "t1"},
                {"role": "user", "content": "b"},
            ],
        ),
        (
            [USER, turn("assistant", TOOL_USE), turn("user", {**RESULT, "content": [text("x"), text("y")]})],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "x\ny", "tool_call_id": "t1"},
            ],
        ),
        (
            [turn("assistant", TOOL_USE), turn("user", {"type": "tool_result", "tool_use_id": "t1"})],
            [
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "", "tool_call_id": "t1"},
            ],
        ),
        (
            [USER, turn("assistant", {"type": "thinking", "thinking": "t", "signature": "s"}, text("b")), USER],
            [USER, {"role": "assistant", "content": "b", "reasoning_content": "t"}, USER],
        ),
        ([{"role": "system", "content": "s"}, USER], [{"role": "system", "content": "s"}, USER]),
        ([turn("user", text("a", citations=None, parsed_output=None))], [USER]),  # null is an omitted field
    ],
)  # fmt: skip
def test_turns_become_messages(given: Any, expected: list[dict[str, Any]]) -> None:
    assert messages(given) == expected
    for system in ("s", [text("s", cache_control={"type": "ephemeral"})]):
        assert messages(given, system=system) == [{"role": "system", "content": "s"}, *expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_tokens": 9, "stop_sequences": ["x"]}, {"max_tokens": 9, "stop": ["x"]}),
        ({"temperature": 0.5, "top_k": 4, "top_p": 0.9}, {"temperature": 0.5, "top_k": 4, "top_p": 0.9}),
        ({}, {"tools": None, "tool_choice": None, "parallel_tool_calls": None, "add_generation_prompt": True}),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tool_choice": "auto", "parallel_tool_calls": True}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False},
        ),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low", "response_format": None}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto"}, {}),
        *(
            ({"thinking": thinking}, {"chat_template_kwargs": variables, "include_reasoning": shown})
            for thinking, variables, shown in (
                ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}, True),
                ({"type": "enabled", "budget_tokens": 9}, {"enable_thinking": True, "thinking": True}, True),
                ({"type": "adaptive", "display": "omitted"}, {}, False),
            )
        ),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": "low"}},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": "low"}},
        ),
        ({"mcp_servers": [], "container": None, "cache_control": {"type": "ephemeral"}}, {}),
        (
            {"messages": [USER, {"role": "assistant", "content": "The"}]},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
        *(
            (
                {"messages": [USER, {"role": "assistant", "content": empty}]},
                {"continue_final_message": False, "add_generation_prompt": True, "messages": [ChatMessage(**USER)]},
            )
            for empty in ("", [], [{"type": "text", "text": ""}])
        ),
    ],
)  # fmt: skip
def test_settings_are_those_of_chat(given: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = translated(**given)
    assert {name: getattr(chat, name) for name in expected} == expected


def test_structured_output_is_that_of_chat() -> None:
    asked = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_config": {"format": asked}}, {"output_format": asked}):
        assert parse_structured_output(translated(**fields)) == StructuredOutput(json_schema=SCHEMA)


def test_tools_are_nested() -> None:
    tools = [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}, "strict": True}]
    (tool,) = translated(tools=tools).tools or ()
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert tool == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        (
            {"messages": [turn("user", {"type": "image", "source": {"type": "url", "url": "http://x"}})]},
            *("messages[0].content[0]", "unsupported_value", "images"),
        ),
        ({"messages": [turn("user", RESULT)]}, "messages[0].content[0].tool_use_id", "invalid_value", "no tool_use"),
        ({"messages": [turn("user", TOOL_USE)]}, "messages[0].content[0]", "invalid_value", "cannot have tool_use"),
        ({"messages": [turn("assistant", RESULT)]}, "messages[0].content[0]", "invalid_value", "user message"),
        ({"messages": [USER, turn("assistant", TOOL_USE)]}, "messages", "invalid_value", "tool_result"),
        ({"messages": [turn("assistant", {"type": "redacted_thinking", "data": "x"})]}, "messages", "invalid_value", "text"),
        (
            {"messages": [USER, turn("assistant", TOOL_USE), turn("user", {**RESULT, "content": [{"type": "image"}]})]},
            *("messages[2].content[0].content[0]", "unsupported_value", "images"),
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]", "unsupported_value", "built-in"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice", "invalid_value", "needs a name"),
        ({"tool_choice": {"type": "any", "name": "f"}}, "tool_choice", "invalid_value", "needs a name"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            *("output_format", "invalid_value", "one of them"),
        ),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers", "unsupported_value", "no other server"),
    ],
)  # fmt: skip
def test_bad_fields_are_refused(fields: dict[str, Any], param: str, code: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        translated(**fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code), error.message
    assert message in error.message and len(error.message) < 1000


def test_max_tokens_is_required() -> None:
    with pytest.raises(ApiError, match="Missing required parameter: 'max_tokens'"):
        parse_body(json.dumps({"messages": [USER]}).encode(), MessagesRequest)


def test_counted_prompt_is_that_of_the_message() -> None:
    fields = {"messages": [USER], "system": "s", "tools": [TOOL], "tool_choice": {"type": "any"}}
    counted = to_chat_prompt(parse_body(json.dumps(fields).encode(), CountTokensRequest))
    for name in ("messages", "tools", "tool_choice", "add_generation_prompt", "response_format"):
        assert getattr(counted, name) == getattr(translated(**fields), name)
    with pytest.raises(ApiError, match="Unknown parameter: 'max_tokens'"):
        parse_body(json.dumps({**fields, "max_tokens": 5}).encode(), CountTokensRequest)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("tools[0].function.parameters.type must be", "tools[0].input_schema.type must be"),
        ("tools[0].function.name must be", "tools[0].name must be"),
        ("response_format is", "output_config.format is"),
        ("stop may have at most 16 strings", "stop_sequences may have at most 16 strings"),
    ],
)
def test_errors_name_the_fields_of_this_api(message: str, expected: str) -> None:
    error = ApiError(400, message, param="stop").in_words(ERROR_WORDS)
    assert (error.message, error.param) == (expected, "stop_sequences")


def test_call_ids_have_the_prefix_of_this_api() -> None:
    assert tool_use_id("call_0123") == "toolu_0123"
    assert tool_use_id("a1b2c3d4e") == "a1b2c3d4e"  # Mistral's nine characters


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error")),
        *((404, "not_found_error"), (405, "invalid_request_error"), (413, "request_too_large")),
        *((415, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")),
        *((503, "overloaded_error"), (504, "timeout_error")),
    ],
)
def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    error = ApiError(status, "why", param="p", code="c")
    expected = {"type": "error", "error": {"type": kind, "message": "why", "details": {"error_code": "c"}}}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert error.body_for(path, "id") == {**expected, "request_id": "id"}
    for path in ("/v1/responses", "/v1/messagesx", "/v1/message", "/"):
        assert error.body_for(path, "id") == error.body()
    assert "details" not in ApiError(status, "why").body_for("/v1/messages", None)["error"]
