"""Thinking and tool calls of Qwen3 and gpt-oss through the whole server, on all chat routes, whole
and streamed. A scripted engine says what the user tells it to.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.chat_models import write_chat_tokenizer
from support.serving import Server, serving

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ARGUMENTS = '{"city": "Rome"}'
ANSWERS = {
    "qwen3": "<think>\nHm. It is\nclear.\n</think>\n\nHello é",
    "gpt-oss": "<|channel|>analysis<|message|>Hm. It is\nclear.<|end|><|start|>assistant<|channel|>final<|message|>"
    "Hello é<|return|>",
}
CALLS = {
    "qwen3": f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
}


@pytest.fixture(scope="module", params=["qwen3", "gpt-oss"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(family: str, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = tmp_path_factory.mktemp("chat") / family
    shutil.copytree(tiny_llama, model)
    write_chat_tokenizer(model, family)
    settings = {"tokenizer": str(model)}
    with serving(
        model, "--served-model-name", "tiny", engine="fake_engine.py", engine_settings=settings
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def say(script: str) -> list[Any]:
    return [{"role": "user", "content": f"Say [[{script}]]"}]


def whole(client: openai.OpenAI, script: str, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in ("include_reasoning",) if name in fields}
    return client.chat.completions.create(model="tiny", messages=say(script), extra_body=extra, **fields)


def streamed(
    client: openai.OpenAI, script: str, **fields: Any
) -> tuple[str, str, list[tuple[str, str]], str]:
    reasoning = content = reason = ""
    calls: list[tuple[str, str]] = []
    for chunk in whole(client, script, stream=True, **fields):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            assert getattr(choice.delta, "reasoning", None) == getattr(
                choice.delta, "reasoning_content", None
            )
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.id is not None:
                    calls.append((call.function.name, ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + call.function.arguments)
            reason = choice.finish_reason or reason
    return reasoning, content, calls, reason


def test_thinking_is_separated(client: openai.OpenAI, family: str) -> None:
    response = whole(client, ANSWERS[family], logprobs=True)
    (choice,) = response.choices
    assert choice.message.reasoning == choice.message.reasoning_content == "Hm. It is\nclear."
    assert (choice.message.content, choice.finish_reason) == ("Hello é", "stop")
    assert streamed(client, ANSWERS[family]) == ("Hm. It is\nclear.", "Hello é", [], "stop")
    counts = response.usage
    assert len(choice.logprobs.content) == counts.completion_tokens
    assert 0 < counts.completion_tokens_details.reasoning_tokens < counts.completion_tokens


def test_responses_have_reasoning_items(client: openai.OpenAI, family: str) -> None:
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    fields: dict[str, Any] = {"model": "tiny", "input": say(CALLS[family]), "tools": [tool]}
    response = client.responses.create(**fields)
    thought, call = response.output
    assert thought.type == "reasoning" and thought.content[0].text == "Hm." and thought.summary == []
    assert call.type == "function_call" and call.arguments == ARGUMENTS
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(**fields) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    assert [one.type for one in final.output] == ["reasoning", "function_call"]
    assert final.output[0].content == thought.content
    assert events.count("response.reasoning_text.done") == 1 and "response.reasoning_text.delta" in events
    again = client.responses.create(
        model="tiny",
        input=[
            *say(CALLS[family]),
            *[one.model_dump(exclude_none=True) for one in response.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "Sun [[Yes]]"},
        ],
    )
    assert again.output_text == "Yes"


def test_messages_have_thinking_blocks(claude: anthropic.Anthropic, family: str) -> None:
    tool = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    fields: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 500,
        "tools": [tool],
        "messages": say(CALLS[family]),
        "extra_body": {"seed": 1},  # the ids of calls depend on it
    }
    message = claude.messages.create(**fields, thinking={"type": "enabled", "budget_tokens": 1024})
    thought, call = message.content
    assert (thought.type, thought.thinking, len(thought.signature)) == ("thinking", "Hm.", 64)
    assert (call.type, call.input, message.stop_reason) == ("tool_use", {"city": "Rome"}, "tool_use")
    with claude.messages.stream(**fields) as stream:
        assert stream.get_final_message().content == message.content
    turns = [
        *say(CALLS[family]),
        {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in message.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sun [[Yes]]"}],
        },
    ]
    answer = claude.messages.create(**{**fields, "messages": turns})
    assert answer.content[0].text == "Yes"
    hidden = claude.messages.create(**fields, thinking={"type": "adaptive", "display": "omitted"})
    assert [one.type for one in hidden.content] == ["tool_use"]


def rendered(server: Server, **fields: Any) -> str:
    tokens = httpx.post(f"{server.url}/tokenize", json=fields).json()["tokens"]
    text: str = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    return text


def test_history_is_given_to_the_template(server: Server, family: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    for name in ("reasoning_content", "reasoning", "thinking"):
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": None, "tool_calls": [call], name: "Hm."},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sun"},
        ]
        expected = {"qwen3": "<think>\nHm.\n</think>", "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|>"}
        assert expected[family] in rendered(server, messages=messages, tools=[TOOL])
    messages[1]["content"] = "I look."  # gpt-oss's template refuses content beside thinking and calls
    text = rendered(server, messages=messages, tools=[TOOL])
    assert "Hm." in text and "I look." in text
    messages[1]["content"] = [{"type": "text", "text": "I look."}]
    assert rendered(server, messages=messages, tools=[TOOL]) == text
    old = [*messages[:1], {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}, *messages[:1]]
    assert "Hm." not in rendered(server, messages=old)


def test_thinking_is_turned_off(server: Server, family: str) -> None:
    if family == "gpt-oss":  # it always thinks
        assert "Reasoning: high" in rendered(
            server, messages=say("Yes"), chat_template_kwargs={"reasoning_effort": "high"}
        )
        return
    off = {"messages": say("Yes"), "chat_template_kwargs": {"enable_thinking": False}}
    assert rendered(server, **off).endswith("<think>\n\n</think>\n\n")
    sizes = {
        json.dumps(fields): httpx.post(
            f"{server.url}/v1/chat/completions", json={"messages": say("Yes"), **fields}
        ).json()["usage"]["prompt_tokens"]
        for fields in (
            {},
            {"reasoning_effort": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
        )
    }
    default, *others = sizes.values()
    assert len(set(others)) == 1 and others[0] > default
    message = httpx.post(
        f"{server.url}/v1/messages",
        json={"messages": say("Yes"), "max_tokens": 9, "thinking": {"type": "disabled"}},
    ).json()
    assert message["usage"]["input_tokens"] == others[0]
    assert message["content"] == [{"type": "text", "text": "Yes"}]
