"""Bodies of /v1/responses are read as the chat completion request with the same prompt and settings, or
refused with the field's name; no server runs."""

import json
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.api.responses.requests import ResponsesRequest
from holdfast.server.api.responses.translation import ERROR_WORDS, to_chat
from holdfast.server.api.sampling import parse_structured_output
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.errors import ApiError
from holdfast.server.http.body import parse_body

USER = {"role": "user", "content": "a"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": one} for one in "tu"]}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}
SCHEMA = {"type": "object"}


def translated(**fields: Any) -> ChatCompletionRequest:
    return to_chat(parse_body(json.dumps({"input": "a", **fields}).encode(), ResponsesRequest))


def messages(input_: Any, **fields: Any) -> list[dict[str, Any]]:
    return [one.model_dump(exclude_unset=True) for one in translated(input=input_, **fields).messages]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", [USER]),
        ([USER], [USER]),
        ([{"type": "message", **USER, "id": "msg_1", "status": "completed"}], [USER]),
        ([{"role": "developer", "content": "d"}, USER], [{"role": "developer", "content": "d"}, USER]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [{"role": "user", "content": "a\nb"}],
        ),
        (
            [{"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]}],
            [{"role": "assistant", "content": "b"}],
        ),
        (
            [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [USER, {"role": "assistant", "content": "no"}],
        ),
        (
            [USER, CALL, OUTPUT],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
            ],
        ),
        (
            [USER, {"role": "assistant", "content": "wait"}, CALL, {**CALL, "call_id": "c2"}],
            [
                USER,
                {"role": "assistant", "content": "wait", "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}]},
            ],
        ),
        ([{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}, USER], [USER]),
        (
            [USER, THOUGHT, {"role": "assistant", "content": "b"}, THOUGHT, CALL, THOUGHT, USER],
            [
                USER,
                {"role": "assistant", "content": "b", "reasoning_content": "t\nu"},
                {"role": "assistant", "content": None, "reasoning_content": "t\nu", "tool_calls": [CHAT_CALL]},
                USER,
            ],
        ),
        ([{**USER, "type": None, "phase": None, "unknown": None}], [USER]),  # null is an omitted field
        (
            [CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}],
            [
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "x\ny", "tool_call_id": "c1"},
            ],
        ),
    ],
)  # fmt: skip
def test_input_becomes_messages(given: Any, expected: list[dict[str, Any]]) -> None:
    assert messages(given) == expected
    assert messages(given, instructions="i") == [{"role": "system", "content": "i"}, *expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3}, {"temperature": 0, "top_p": 0.5, "top_k": 3}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"response_format": None}),
        (
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({}, {"logprobs": False, "top_logprobs": None, "tools": None, "n": None}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": None}),
        ({"include": ["reasoning.encrypted_content"]}, {"logprobs": False}),
        ({"store": True, "metadata": {"a": "b"}, "truncation": "disabled", "background": False}, {}),
    ],
)  # fmt: skip
def test_settings_are_those_of_chat(given: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = translated(**given)
    assert {name: getattr(chat, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, {"json_schema": SCHEMA}),
        ({"type": "json_object"}, {"json_object": True}),
    ],
)
def test_structured_output_is_that_of_chat(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_structured_output(translated(text={"format": given})) == StructuredOutput(**expected)


def test_tools_are_nested() -> None:
    (tool,) = translated(tools=[TOOL]).tools or ()
    assert tool["type"] == "function"
    assert {name: value for name, value in tool["function"].items() if value is not None} == {
        "name": "f",
        "parameters": PARAMETERS,
        "strict": True,
    }


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        ({"input": [{}]}, "input[0].role", "missing_required_parameter", ""),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0]", "unsupported_value", "stored"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            *("input[0].content[0]", "unsupported_value", "images"),
        ),
        ({"input": [USER, OUTPUT, CALL]}, "input[1].call_id", "invalid_value", "no function_call"),
        ({"input": [{"type": "reasoning"}]}, "input", "invalid_value", "only reasoning"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_value", "not stored"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_value", ""),
        ({"background": True}, "background", "unsupported_value", "waits"),
        ({"truncation": "auto"}, "truncation", "unsupported_value", "never truncated"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_value", "built-in"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", "unsupported_value", ""),
    ],
)  # fmt: skip
def test_bad_fields_are_refused(fields: dict[str, Any], param: str, code: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        translated(**fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code), error.message
    assert message in error.message and len(error.message) < 1000


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("max_tokens is 9 and max_completion_tokens 8", "max_output_tokens is 9 and max_output_tokens 8"),
        ("tools[3].function.name must be", "tools[3].name must be"),
        ("response_format.type", "text.format.type"),
    ],
)
def test_errors_name_the_fields_of_this_api(message: str, expected: str) -> None:
    error = ApiError(400, message, param="messages", code="invalid_value").in_words(ERROR_WORDS)
    assert (error.message, error.param, error.code) == (expected, "input", "invalid_value")
