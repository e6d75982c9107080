"""/v1/messages with Anthropic's client: whole, streamed, tools, structured output, counted tokens, errors; sync
and async."""

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


def test_message(client: anthropic.Anthropic) -> None:
    message = ask(client, system="be kind", metadata={"user_id": "u"})
    assert message.id.startswith("msg_") and (message.type, message.role) == ("message", "assistant")
    assert (message.stop_reason, message.stop_sequence, message.model) == ("max_tokens", None, "tiny")
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message.usage.output_tokens == 8 and message.usage.cache_creation_input_tokens == 0
    details = message.model_extra["holdfast"]
    assert details["seed"] == 3 and details["mode"] in ("certified", "verified")
    assert message.id == f"msg_{message._request_id}"


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


def test_stream_equals_the_whole_message(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    num_deltas = kinds.count("content_block_delta")
    assert kinds == [
        *(
            "message_start",
            "content_block_start",
            *["content_block_delta"] * num_deltas,
            "content_block_stop",
        ),
        *("message_delta", "message_stop"),
    ]
    assert (
        "".join(event.delta.text for event in events if event.type == "content_block_delta")
        == whole.content[0].text
    )
    assert events[0].message.stop_reason is None and events[0].message.content == []
    end = events[-2]
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("max_tokens", 8)
    assert end.model_extra["holdfast"]["seed"] == 3
    with client.messages.stream(**settings_of()) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    final = streamed(client)
    assert final.content[0].text == whole.content[0].text and final.usage.output_tokens == 8


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


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({"model": "claude-1"}, anthropic.NotFoundError, "does not exist"),
        ({"max_tokens": 4000}, anthropic.BadRequestError, "the context of 2048"),
        ({"thinking": {"type": "adaptive"}}, anthropic.BadRequestError, "writes no thinking blocks"),
        ({"stop_sequences": ["x"] * 17}, anthropic.BadRequestError, "stop_sequences may have"),
    ],
)
def test_errors_map_to_the_clients_exceptions(
    client: anthropic.Anthropic, settings: Any, error: type[anthropic.APIStatusError], expected: str
) -> None:
    for stream in (False, True):
        with pytest.raises(error, match=expected) as caught:
            ask(client, stream=stream, **settings)
        assert caught.value.type in ("invalid_request_error", "not_found_error") and caught.value.error_code
        assert caught.value.request_id
