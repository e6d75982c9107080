"""Tools through the whole server, with OpenAI's client: forced, auto, with structured output, and
with results.
"""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.serving import Server
from support.tiny import EOS


def function(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": f"The {name}.", "parameters": parameters},
    }


CITY = {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}
TOOLS = [function("weather", city=CITY), function("time", city=CITY)]
QUESTION: Any = [{"role": "user", "content": "How is the weather in Paris, and what time is it there?"}]


@pytest.fixture(scope="module")
def client(tools_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{tools_server.url}/v1", api_key="unused", max_retries=0, timeout=120
    ) as client:
        yield client


def ask(client: openai.OpenAI, **settings: Any) -> Any:
    given = {"model": "tiny", "messages": QUESTION, "tools": TOOLS, "max_tokens": 500, "seed": 3}
    return client.chat.completions.create(**{**given, "extra_body": {"deterministic": True}, **settings})


def streamed(client: openai.OpenAI, **settings: Any) -> tuple[str, list[list[str]], str | None]:
    """Content, calls (id, name, arguments) and finish reason of a stream."""
    content, reason = "", None
    calls: list[list[str]] = []
    for chunk in ask(client, stream=True, **settings):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for piece in choice.delta.tool_calls or ():
            if piece.id is not None:
                assert piece.index == len(calls)
                calls.append([piece.id, piece.function.name, ""])
            calls[piece.index][2] += piece.function.arguments
        reason = choice.finish_reason or reason
    return content, calls, reason


def whole(client: openai.OpenAI, **settings: Any) -> tuple[str, list[list[str]], str | None]:
    """The same of a whole response."""
    (choice,) = ask(client, **settings).choices
    calls = [[one.id, one.function.name, one.function.arguments] for one in choice.message.tool_calls or ()]
    assert (choice.message.content is None) <= bool(calls)
    return choice.message.content or "", calls, choice.finish_reason


@pytest.mark.parametrize("parallel", [True, False])
def test_required_call(client: openai.OpenAI, parallel: bool) -> None:
    """A model that is biased against ending writes several calls, if allowed."""
    settings = {"tool_choice": "required", "parallel_tool_calls": parallel, "logit_bias": {str(EOS): -100}}
    content, calls, reason = whole(client, **settings, max_tokens=500)
    assert (content, reason) == ("", "length" if parallel else "tool_calls")
    assert (len(calls) > 2) if parallel else (len(calls) == 1)
    for _, name, arguments in calls[:-1] if parallel else calls:
        assert name in ("weather", "time") and json.loads(arguments)["city"] in CITY["enum"]
    assert len({id_ for id_, _, _ in calls}) == len(calls)
    assert streamed(client, **settings, max_tokens=500) == (content, calls, reason)


def test_conversation_continues_with_tool_results(client: openai.OpenAI) -> None:
    message = ask(client, tool_choice="required").choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 °C"} for call in message.tool_calls
    ]
    answer = ask(client, messages=[*QUESTION, message, *results], max_tokens=24)
    assert answer.choices[0].message.content
    dumped = ask(client, messages=[*QUESTION, message.model_dump(), *results], max_tokens=24)
    assert dumped.choices[0].message == answer.choices[0].message
    again = ask(client, messages=[*QUESTION, message, *results], tool_choice="required").choices[0].message
    assert {call.id for call in again.tool_calls}.isdisjoint(call.id for call in message.tool_calls)


def test_calls_with_response_format(client: openai.OpenAI) -> None:
    schema = {
        **function("a", answer={"type": "boolean"})["function"]["parameters"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    reasons = set()
    for seed in range(6):
        content, calls, reason = whole(client, response_format=response_format, seed=seed)
        reasons.add(reason)
        assert reason == ("tool_calls" if calls else "stop")
        assert (content == "") if calls else (set(json.loads(content)) == {"answer"})
    assert reasons
