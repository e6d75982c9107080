"""Anthropic's Python package."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
from checks import MAX_TOKENS, TEMPERATURE, Target

CLIENT = "anthropic"
QUESTION: Any = [{"role": "user", "content": "Name three rivers of Europe."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
    },
}


@contextmanager
def _client(target: Target) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=target.url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def check_messages(target: Target) -> None:
    """messages with a system prompt, twice the same"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "messages": QUESTION, "system": "Be brief.", "max_tokens": 8}
        first, second = (client.messages.create(**settings) for _ in range(2))
        assert first.role == "assistant" and first.stop_reason in ("max_tokens", "end_turn")
        assert first.content == second.content and first.stop_reason == second.stop_reason
        assert first.usage.output_tokens <= 8


def check_stream(target: Target) -> None:
    """streamed message equals the whole one"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "messages": QUESTION, "max_tokens": 8}
        whole = client.messages.create(**settings)
        with client.messages.stream(**settings) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert final.stop_reason == whole.stop_reason
        assert text == "".join(block.text for block in whole.content if block.type == "text")
        assert final.usage.output_tokens == whole.usage.output_tokens


def check_stop_sequences(target: Target) -> None:
    """a stop sequence ends the message and is named"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "messages": QUESTION, "max_tokens": 24}
        (block,) = client.messages.create(**settings).content
        stop = next(letter for letter in block.text[1:] if letter.isascii() and letter.isprintable())
        stopped = client.messages.create(stop_sequences=[stop], **settings)
        assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop
        assert "".join(part.text for part in stopped.content) == block.text[: block.text.index(stop)]


def check_tools(target: Target) -> None:
    """tools: a forced call, its result, a streamed call"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "tools": [WEATHER], "max_tokens": 64}
        forced: Any = {"type": "tool", "name": "get_weather"}
        answer = client.messages.create(messages=QUESTION, tool_choice=forced, **settings)
        call = next(block for block in answer.content if block.type == "tool_use")
        assert answer.stop_reason == "tool_use" and set(call.input) == {"city"}
        with client.messages.stream(messages=QUESTION, tool_choice=forced, **settings) as stream:
            streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
        assert streamed.input == call.input and streamed.id == call.id
        told = [
            *QUESTION,
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in answer.content],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
        ]
        client.messages.create(messages=told, tool_choice={"type": "none"}, **settings)


def check_count_tokens(target: Target) -> None:
    """count_tokens gives the usage of the same message"""
    with _client(target) as client:
        counted = client.messages.count_tokens(model=target.model, messages=QUESTION, system="Be brief.")
        answer = client.messages.create(
            model=target.model, messages=QUESTION, system="Be brief.", max_tokens=1
        )
        cached = answer.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == answer.usage.input_tokens + cached


def check_errors(target: Target) -> None:
    """errors are the package's exceptions"""
    with _client(target) as client:
        for settings, error in (
            ({"model": target.model, "max_tokens": 0}, anthropic.BadRequestError),
            ({"model": "claude", "max_tokens": 1}, anthropic.NotFoundError),
        ):
            try:
                client.messages.create(messages=QUESTION, **settings)  # type: ignore[call-overload]
            except error:
                continue
            raise AssertionError(f"no {error.__name__} for {settings}")


def ask(target: Target, prompt: str) -> str:
    with _client(target) as client:
        answer = client.messages.create(
            model=target.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
            extra_body={"temperature": TEMPERATURE},  # version 2 of the package does not name it
        )
    return "".join(block.text for block in answer.content if block.type == "text")
