"""Grammars after thinking, through a real engine: a random model thinks, then calls a tool or writes
JSON, as often as it is asked with the same bits.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from support.chat_models import chat_model
from support.serving import Server, serving

pytestmark = pytest.mark.long

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
QUESTION: Any = [{"role": "user", "content": "Rome?"}]
TAGS = {"qwen3": ("<think>", "</think>"), "gpt-oss": ("<|message|>", "<|end|>")}


@pytest.fixture(scope="module", params=["qwen3", "gpt-oss"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("thinking") / request.param, request.param)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--max-num-seqs", "4", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def bias(tokenizer: Tokenizer, name: str) -> dict[str, int]:
    """Thinking begins where it may and ends at once."""
    opening, closing = (tokenizer.added_id(one) for one in TAGS[name])
    return {str(opening): 50, str(closing): 100}


@pytest.mark.parametrize("wanted", ["call", "json"])
def test_thinking_comes_before_the_constrained_answer(
    client: openai.OpenAI, model: Path, wanted: str
) -> None:
    tokenizer = open_tokenizer(model)
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
    if wanted == "json":
        response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        fields = {"response_format": response_format}
    fields |= {"model": "tiny", "messages": QUESTION, "max_tokens": 300, "seed": 3}
    fields |= {"logit_bias": bias(tokenizer, model.name), "extra_body": {"deterministic": True}}
    (choice,) = client.chat.completions.create(**fields).choices
    if choice.message.tool_calls:
        written = choice.message.tool_calls[0].function.arguments
    else:
        written = choice.message.content or ""
    assert json.loads(written)["city"] in ("Rome", "Oslo")
    assert choice.finish_reason == ("tool_calls" if wanted == "call" else "stop")
    usage = client.chat.completions.create(**fields).usage
    assert usage.completion_tokens_details.reasoning_tokens > 0
    again = client.chat.completions.create(**fields, stream=True)
    deltas = [chunk.choices[0].delta for chunk in again if chunk.choices]
    parts = [call.function.arguments for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(parts or [delta.content or "" for delta in deltas]) == written


def test_receipt_of_a_constrained_answer_is_replayed(
    server: Server, client: openai.OpenAI, model: Path
) -> None:
    response = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        tools=[TOOL],
        tool_choice="required",
        max_tokens=300,
        logit_bias=bias(open_tokenizer(model), model.name),
        extra_body={"deterministic": True, "return_receipt": True},
    )
    receipt = response.model_extra["holdfast"]["receipt"]
    answer = httpx.post(f"{server.url}/v1/replay", json={"receipt": receipt}, timeout=120)
    assert answer.json()["same"] is True
