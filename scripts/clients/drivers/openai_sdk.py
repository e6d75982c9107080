"""OpenAI's Python package."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
from checks import MAX_TOKENS, TEMPERATURE, Target
from pydantic import BaseModel, Field

CLIENT = "openai"
QUESTION: Any = [{"role": "user", "content": "Name three rivers of Europe."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class City(BaseModel):
    """What structured answers are parsed into."""

    name: str = Field(max_length=12)
    is_port: bool


@contextmanager
def _client(target: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=target.base_url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def check_models(target: Target) -> None:
    """list and retrieve models"""
    with _client(target) as client:
        assert target.model in [model.id for model in client.models.list()]
        assert client.models.retrieve(target.model).object == "model"


def check_chat(target: Target) -> None:
    """chat completion with logprobs, twice the same"""
    with _client(target) as client:
        settings: Any = {
            "model": target.model,
            "messages": QUESTION,
            "max_tokens": 8,
            "logprobs": True,
            "top_logprobs": 2,
        }
        first, second = (client.chat.completions.create(**settings) for _ in range(2))
        assert first.choices[0].message.role == "assistant"
        assert first.usage is not None and first.usage.completion_tokens <= 8
        assert first.system_fingerprint and first.system_fingerprint == second.system_fingerprint
        assert first.choices == second.choices


def check_chat_stream(target: Target) -> None:
    """streamed chat completion equals the whole one"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "messages": QUESTION, "max_tokens": 8, "seed": 3}
        whole = client.chat.completions.create(**settings).choices[0]
        pieces = [piece for piece in client.chat.completions.create(stream=True, **settings) if piece.choices]
        deltas = [piece.choices[0].delta.content or "" for piece in pieces]
        assert "".join(deltas) == whole.message.content
        assert pieces[-1].choices[0].finish_reason == whole.finish_reason


def check_completions(target: Target) -> None:
    """completions: several prompts, echo, logprobs, stream"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "max_tokens": 4, "temperature": 0}
        answer = client.completions.create(
            prompt=["The sky is", "Two and"], echo=True, logprobs=1, **settings
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None
        assert logprobs.token_logprobs[0] is None and "".join(logprobs.tokens or ()) == answer.choices[0].text
        pieces = client.completions.create(prompt="The sky is", stream=True, **settings)
        assert answer.choices[0].text == "The sky is" + "".join(piece.choices[0].text for piece in pieces)


def check_structured(target: Target) -> None:
    """chat.completions.parse into a pydantic model"""
    with _client(target) as client:
        answer = client.chat.completions.parse(
            model=target.model, messages=QUESTION, response_format=City, max_tokens=64, seed=1
        )
        assert isinstance(answer.choices[0].message.parsed, City)


def check_tools(target: Target) -> None:
    """tools: a required call, its result, streamed calls"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "tools": [WEATHER], "max_tokens": 64, "seed": 1}
        settings["parallel_tool_calls"] = False
        answer = client.chat.completions.create(messages=QUESTION, tool_choice="required", **settings)
        choice = answer.choices[0]
        (call, *_) = choice.message.tool_calls or ()
        assert choice.finish_reason == "tool_calls" and call.type == "function"
        assert set(json.loads(call.function.arguments)) == {"city"}
        told = [
            *QUESTION,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        client.chat.completions.create(messages=told, tool_choice="none", **settings)
        with client.chat.completions.stream(messages=QUESTION, tool_choice="required", **settings) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert [one.function.arguments for one in streamed] == [
            one.function.arguments for one in choice.message.tool_calls or () if one.type == "function"
        ]


def check_responses(target: Target) -> None:
    """responses: text, stream, instructions"""
    with _client(target) as client:
        settings: Any = {
            "model": target.model,
            "input": "Name three rivers of Europe.",
            "instructions": "Be brief.",
            "max_output_tokens": 8,
            "store": False,
        }
        whole = client.responses.create(**settings)
        assert whole.object == "response" and whole.usage is not None
        with client.responses.stream(**settings) as stream:
            events = list(stream)
        final = events[-1].response  # completed, or incomplete after max_output_tokens
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == final.output_text == whole.output_text and final.status == whole.status


def check_responses_structured_and_tools(target: Target) -> None:
    """responses.parse, a required function call and its output"""
    with _client(target) as client:
        settings: Any = {"model": target.model, "max_output_tokens": 64, "store": False}
        question = "Is Genoa a port?"
        parsed = client.responses.parse(input=question, text_format=City, **settings)
        assert isinstance(parsed.output_parsed, City)
        tool: Any = {"type": "function", **WEATHER["function"]}
        answer = client.responses.create(input=question, tools=[tool], tool_choice="required", **settings)
        call = next(item for item in answer.output if item.type == "function_call")
        assert set(json.loads(call.arguments)) == {"city"}
        told: Any = [
            {"role": "user", "content": question},
            *(item.model_dump(exclude_none=True) for item in answer.output),
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ]
        client.responses.create(input=told, tools=[tool], tool_choice="none", **settings)


def check_embeddings(target: Target) -> None:
    """embeddings: the same alone and in a batch; floats and base64"""
    with _client(target) as client:
        texts = ["a holdfast", "the sea", "a holdfast"]
        both = client.embeddings.create(model=target.model, input=texts).data  # base64 on the wire
        alone = client.embeddings.create(model=target.model, input=texts[0]).data
        floats = client.embeddings.create(model=target.model, input=texts[0], encoding_format="float").data
        assert both[0].embedding == both[2].embedding == alone[0].embedding == floats[0].embedding
        assert both[1].embedding != both[0].embedding
        short = client.embeddings.create(model=target.model, input=texts[0], dimensions=16).data
        assert len(short[0].embedding) == 16


def check_errors(target: Target) -> None:
    """errors are the package's exceptions"""
    with _client(target) as client:
        for settings, error in (
            ({"model": target.model, "temperature": -1}, openai.BadRequestError),
            ({"model": "gpt-5"}, openai.NotFoundError),
        ):
            try:
                client.chat.completions.create(messages=QUESTION, **settings)  # type: ignore[call-overload]
            except error:
                continue
            raise AssertionError(f"no {error.__name__} for {settings}")


def ask(target: Target, prompt: str, seed: int) -> str:
    with _client(target) as client:
        answer = client.chat.completions.create(
            model=target.model,
            messages=[{"role": "user", "content": prompt}],
            temperature=TEMPERATURE,
            max_tokens=MAX_TOKENS,
            seed=seed,
        )
    return answer.choices[0].message.content or ""


def ask_seedless(target: Target, prompt: str) -> str:
    with _client(target) as client:
        answer = client.chat.completions.create(
            model=target.model,
            messages=[{"role": "user", "content": prompt}],
            temperature=TEMPERATURE,
            max_completion_tokens=MAX_TOKENS,
        )
    return answer.choices[0].message.content or ""


def ask_responses(target: Target, prompt: str) -> str:
    with _client(target) as client:
        return client.responses.create(
            model=target.model, input=prompt, temperature=TEMPERATURE, max_output_tokens=MAX_TOKENS
        ).output_text
