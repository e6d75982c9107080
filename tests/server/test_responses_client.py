"""/v1/responses with OpenAI's client: settings, types, tools, logprobs."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from support.serving import Server

EXTRA = {"deterministic": True, "seed": 3}
CITY = {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False},
    "strict": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tools_server: Server) -> Iterator[openai.OpenAI]:
    url = f"{tools_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, **settings: Any) -> Any:
    given: dict[str, Any] = {"model": "tiny", "input": "hi", "max_output_tokens": 8, "extra_body": EXTRA}
    return client.responses.create(**{**given, **settings})


def test_response_repeats_its_settings(client: openai.OpenAI) -> None:
    response = ask(client, instructions="be kind", metadata={"a": "b"}, temperature=0.5, user="u", store=True)
    assert response.object == "response" and response.id.startswith("resp_") and response.model == "tiny"
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.instructions, response.metadata) == ("be kind", {"a": "b"})
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 1.0, 8)
    assert response.model_extra["store"] is False  # nothing is stored
    assert response.output_text == response.output[0].content[0].text
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 8
    assert response.usage.total_tokens == response.usage.input_tokens + 8
    details = response.model_extra["holdfast"]
    assert details["seed"] == 3 and details["mode"] in ("certified", "verified")
    assert response.model_extra["system_fingerprint"]


@pytest.mark.parametrize(
    "settings", [{}, {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 300}]
)
def test_responses_and_events_have_the_types_of_the_sdk(
    tools_server: Server, settings: dict[str, Any]
) -> None:
    """The client itself reads any JSON without validation."""
    body = {
        "input": "hi",
        "max_output_tokens": 8,
        "top_logprobs": 1,
        "reasoning": {"effort": "low"},
        **EXTRA,
        **settings,
    }
    response = tools_server.post("/v1/responses", body).json()
    assert Response.model_validate(response).id == response["id"]
    lines = tools_server.post("/v1/responses", {**body, "stream": True}).text.split("\n")
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = [
        adapter.validate_json(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")
    ]
    assert [event.type for event in events] == names and len(events) > 8
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_logprobs_are_those_of_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, logprobs=True, top_logprobs=2, extra_body=EXTRA
    )
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    expected = [one.model_dump() for one in chat.choices[0].logprobs.content]
    for settings in ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"top_logprobs": 2}):
        part = ask(client, **settings).output[0].content[0]
        assert [one.model_dump() for one in part.logprobs] == expected
        events = list(ask(client, stream=True, **settings))
        done = next(event for event in events if event.type == "response.output_text.done")
        deltas = [
            one for event in events if event.type == "response.output_text.delta" for one in event.logprobs
        ]
        assert [one.logprob for one in done.logprobs] == [one["logprob"] for one in expected]
        assert [one.logprob for one in deltas] == [one["logprob"] for one in expected][: len(deltas)]
    assert ask(client).output[0].content[0].logprobs == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_tool_call_round_trip(client: openai.OpenAI, choice: Any) -> None:
    question = {"role": "user", "content": "How is the weather?"}
    settings: Any = {"tools": [TOOL], "max_output_tokens": None}
    first = ask(client, input=[question], tool_choice=choice, parallel_tool_calls=False, **settings)
    (call,) = first.output
    assert first.status == "completed" and call.type == "function_call" and call.name == "weather"
    assert json.loads(call.arguments)["city"] in CITY["enum"] and call.status == "completed"
    events = list(
        ask(client, input=[question], tool_choice=choice, parallel_tool_calls=False, stream=True, **settings)
    )
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == call.arguments
    (done,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert (done.call_id, done.name, done.arguments) == (call.call_id, call.name, call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answers = {
        ask(client, input=[question, *sent, result], tools=[TOOL]).output_text
        for sent in (first.output, [call.to_dict()], [call.model_dump()])
    }
    assert len(answers) == 1 and answers != {""}


def test_route_beside_stored_responses_allows_its_own_method(client: openai.OpenAI) -> None:
    refused = httpx.options(f"{client.base_url}responses/input_tokens")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


def test_stored_responses_are_not_found(client: openai.OpenAI) -> None:
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            call("resp_1")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(client, model="gpt-5")
