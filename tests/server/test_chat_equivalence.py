"""One conversation through chat completions, responses and messages: the same prompt, settings, tokens and
logprob bits, which the receipts have."""

from typing import Any

import pytest

from support.bodies import answer_of
from support.serving import Server

SHARED: dict[str, Any] = {
    "deterministic": True,
    "seed": 11,
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 50,
    "min_tokens": 4,
    "repetition_penalty": 1.1,
    "return_token_ids": True,
    "return_receipt": True,
}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
ARGUMENTS = '{"city": "Paris"}'
PARTS = ("How is", "the weather?")

# The same conversations in the three APIs.
PLAIN = (
    {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": one} for one in PARTS]},
            {"role": "assistant", "content": "Where?"},
            {"role": "user", "content": "In Rome."},
        ],
        "stop": ["zz", "qq"],
    },
    {
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": one} for one in PARTS]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Where?"}]},
            {"role": "user", "content": "In Rome."},
        ],
        "stop": ["zz", "qq"],
    },
    {
        "system": [{"type": "text", "text": "be kind"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": one} for one in PARTS]},
            {"role": "assistant", "content": [{"type": "text", "text": "Where?"}]},
            {"role": "user", "content": "In Rome."},
        ],
        "stop_sequences": ["zz", "qq"],
    },
)
RESULTS = (
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "wait",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    {
        "input": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "wait"},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c", "output": "rain"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
    },
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "wait"},
                    {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Paris"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain"}]},
        ],
        "tools": [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}],
    },
)
HI = [{"role": "user", "content": "hi"}]
ROUTES = (
    ("/v1/chat/completions", "max_tokens"),
    ("/v1/responses", "max_output_tokens"),
    ("/v1/messages", "max_tokens"),
)


@pytest.mark.parametrize("bodies", [PLAIN, RESULTS], ids=["plain", "results"])
def test_three_apis_give_the_same_bits(tools_server: Server, bodies: tuple[dict[str, Any], ...]) -> None:
    answers = []
    for (path, limit), body in zip(ROUTES, bodies, strict=True):
        answers.append(answer_of(tools_server, path, {**SHARED, **body, limit: 120}))
    chat, *others = answers
    ids = chat["choices"][0]["token_ids"]
    receipt = chat["holdfast"]["receipt"]
    assert len(ids) >= 4 and chat["holdfast"]["mode"] in ("certified", "verified")
    for other in others:
        assert (other["prompt_token_ids"], other["token_ids"]) == (chat["prompt_token_ids"], ids)
        assert other["system_fingerprint"] == chat["system_fingerprint"]
        theirs = other["holdfast"]["receipt"]
        for name in ("settings", "seed", "choices", "mode", "fingerprint", "certificate"):
            assert theirs[name] == receipt[name], name
    text = chat["choices"][0]["message"]["content"]
    assert others[0]["output"][0]["content"][0]["text"] == others[1]["content"][0]["text"] == text


def test_requests_are_counted_and_logged_alike(tools_server: Server) -> None:
    before = tools_server.metric("holdfast_request_success_total")
    tools_server.post("/v1/responses", {})  # the first error makes the series
    errors = tools_server.metric("holdfast_request_errors_total")
    for (path, limit), body in zip(
        ROUTES, ({"messages": HI}, {"input": "hi"}, {"messages": HI}), strict=True
    ):
        answer = tools_server.post(
            path, {**body, limit: 3, "stream": path != ROUTES[0][0], "ignore_eos": True}
        )
        line = tools_server.wait_for(f"request_id={answer.headers['x-request-id']} ")
        assert f"route={path} status=200" in line.string and "completion_tokens=3" in line.string
        assert "finish_reason=length" in line.string and "first_token_ms=" in line.string
        assert tools_server.post(path, {**body, limit: 3, "min_tokens": 9}).status_code == 400
    assert tools_server.metric("holdfast_request_success_total") == before + 3
    assert tools_server.metric("holdfast_request_errors_total") == errors + 3
