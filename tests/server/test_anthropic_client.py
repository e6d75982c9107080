"""/v1/messages with Anthropic's client: types and tools."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from support.serving import Server

EXTRA = {"deterministic": True, "seed": 3}
CITY = {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}
TOOL: Any = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
}
QUESTION: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(tools_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=tools_server.url, api_key="unused", max_retries=0, timeout=120
    ) as client:
        yield client


def settings_of(**settings: Any) -> Any:
    return {"model": "tiny", "messages": QUESTION, "max_tokens": 8, "extra_body": EXTRA, **settings}


def ask(client: anthropic.Anthropic, **settings: Any) -> Any:
    return client.messages.create(**settings_of(**settings))


@pytest.mark.parametrize(
    "settings", [{}, {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 300}]
)
def test_messages_and_events_have_the_types_of_the_sdk(
    tools_server: Server, settings: dict[str, Any]
) -> None:
    """The client itself reads any JSON without validation."""
    body = {"messages": QUESTION, "max_tokens": 8, **EXTRA, **settings}
    message = tools_server.post("/v1/messages", body).json()
    assert Message.model_validate(message).id == message["id"]
    lines = tools_server.post("/v1/messages", {**body, "stream": True}).text.split("\n")
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    data = [
        line.removeprefix("data: ") for line in lines if line.startswith("data: ") and '"ping"' not in line
    ]
    assert len([adapter.validate_json(one) for one in data]) > 5


def streamed(client: anthropic.Anthropic, **settings: Any) -> Any:
    with client.messages.stream(**settings_of(**settings)) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}]
)
def test_tool_use_round_trip(client: anthropic.Anthropic, choice: Any) -> None:
    settings: Any = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    message = ask(client, **settings)
    (call,) = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather"
    assert call.id.startswith("toolu_") and call.input["city"] in CITY["enum"]
    assert streamed(client, **settings).content == message.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = ask(client, messages=turns, tools=[TOOL])
    assert answer.content[0].text
    dumped = [*QUESTION, {"role": "assistant", "content": [call.model_dump()]}, turns[-1]]
    assert ask(client, messages=dumped, tools=[TOOL]).content == answer.content
    wrong = [*turns[:-1], {"role": "user", "content": [{**result, "is_error": True}]}]
    assert ask(client, messages=wrong, tools=[TOOL]).usage != answer.usage  # the model reads that it failed


@pytest.mark.parametrize("max_tokens", [50, 52])
def test_truncated_tool_use_has_the_complete_part_of_its_input(
    client: anthropic.Anthropic, max_tokens: int
) -> None:
    settings: Any = {
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": max_tokens,
    }
    message = ask(client, **settings)
    assert message.stop_reason == "max_tokens" and isinstance(message.content[0].input, dict)
    assert streamed(client, **settings).content == message.content
