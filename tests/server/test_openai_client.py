"""OpenAI's client with the default model: chat, streams, logprobs, JSON, tools, determinism."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from support.serving import Server

pytestmark = pytest.mark.smollm2

QUESTION: Any = [{"role": "user", "content": "Name three rivers of Europe."}]
DETERMINISTIC = {"deterministic": True}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    url = f"{smollm2_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def test_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "holdfast"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("gpt-5")


def test_tokenizer_info_of_the_default_model(smollm2_server: Server) -> None:
    """In this file, so that one server of the default model is enough."""
    info = smollm2_server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and info["bos_token"] == "<|im_start|>"
    for text in (info["eos_token"], info["bos_token"]):
        answer = smollm2_server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert len(answer.json()["tokens"]) == 1
    assert "<|im_start|>" in info["chat_template"] and not info["add_bos_token"]


def test_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_completion_tokens=16, temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert answer.system_fingerprint


def test_stream_equals_the_whole_response(client: openai.OpenAI) -> None:
    settings: Any = {
        "model": "smollm2",
        "messages": QUESTION,
        "max_tokens": 12,
        "temperature": 0,
        "extra_body": DETERMINISTIC,
    }
    whole = client.chat.completions.create(**settings)
    chunks = list(
        client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    streamed, used = chunks[-1].usage, whole.usage
    assert streamed is not None and used is not None
    assert streamed.completion_tokens == used.completion_tokens == 12
    assert streamed.prompt_tokens == used.prompt_tokens > 0
    assert streamed.total_tokens == used.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 6
    for one in logprobs.content:
        assert len(one.top_logprobs) == 3 and one.top_logprobs[0].logprob == one.logprob <= 0
        assert bytes(one.bytes or ()).decode() == one.token
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content


def test_json_schema_is_enforced(client: openai.OpenAI) -> None:
    response_format: Any = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
    }
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "A city and its population, as JSON."}],
        response_format=response_format,
        max_tokens=60,
        extra_body=DETERMINISTIC,
        seed=3,
    )
    assert answer.choices[0].finish_reason == "stop"
    content = json.loads(answer.choices[0].message.content or "")
    assert set(content) == {"city", "people"} and isinstance(content["people"], int)


def test_tool_call(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
            },
        },
    }
    settings: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 80,
        "temperature": 0,
        "extra_body": DETERMINISTIC,
    }
    answer = client.chat.completions.create(**settings)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.type == "function" and call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    chunks = [chunk.choices[0].delta for chunk in client.chat.completions.create(**settings, stream=True)]
    pieces = [piece for delta in chunks for piece in delta.tool_calls or ()]
    assert pieces[0].id == call.id
    assert (
        "".join(piece.function.arguments or "" for piece in pieces if piece.function)
        == call.function.arguments
    )


def test_deterministic_request_is_bitwise_equal_under_load(client: openai.OpenAI) -> None:
    def ask(number: int) -> tuple[str, Any]:
        settings: Any = {"model": "smollm2", "max_tokens": 12, "temperature": 0.8}
        if number % 3:  # load: other prompts with other sampling
            text = f"Tell a story about the number {number}."
            client.chat.completions.create(messages=[{"role": "user", "content": text}], **settings)
            return "", None
        answer = client.chat.completions.create(
            messages=QUESTION, seed=7, logprobs=True, extra_body=DETERMINISTIC, **settings
        )
        assert answer.model_extra is not None and answer.model_extra["holdfast"]["mode"] in (
            "certified",
            "verified",
        )
        return answer.choices[0].message.content or "", answer.choices[0].logprobs

    alone = ask(0)
    with ThreadPoolExecutor(9) as pool:
        others = [answer for answer in pool.map(ask, range(18)) if answer[0]]
    assert len(others) == 6 and all(answer == alone for answer in others)


def test_raw_completions_batch_echo_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2",
        prompt=["The sky is", "Two and two is"],
        max_tokens=4,
        temperature=0,
        echo=True,
        logprobs=2,
        n=1,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("The sky is") and answer.choices[1].text.startswith(
        "Two and two is"
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.tokens is not None
    assert (
        logprobs.token_logprobs[0] is None and len(logprobs.token_logprobs) == len(logprobs.tokens) == 3 + 4
    )
    assert "".join(logprobs.tokens) == answer.choices[0].text


def test_errors_map_to_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=-1)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=1 << 20)
    assert caught.value.code == "context_length_exceeded"
