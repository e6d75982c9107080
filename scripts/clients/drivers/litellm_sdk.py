"""LiteLLM: its OpenAI-compatible provider, `hosted_vllm`, its text completions, tools and embeddings."""

import json
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no price list from the network

import litellm
from checks import MAX_TOKENS, TEMPERATURE, Target, run_recipe
from pydantic import BaseModel, Field

CLIENT = "litellm"
QUESTION: Any = [{"role": "user", "content": "Name three rivers of Europe."}]


class City(BaseModel):
    name: str = Field(max_length=12)
    is_port: bool


def _settings(target: Target, provider: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{provider}/{target.model}",
        "api_base": target.base_url,
        "api_key": "unused",
        "timeout": 120,
        "num_retries": 0,
    }


def check_recipe(target: Target) -> None:
    """the example of docs/recipes.md"""
    run_recipe("litellm", target)


def check_chat(target: Target) -> None:
    """completion(), twice the same, and streamed"""
    settings = {**_settings(target), "messages": QUESTION, "max_tokens": 8, "seed": 3}
    first, second = (litellm.completion(**settings).choices[0] for _ in range(2))
    assert first.message.content == second.message.content
    pieces = litellm.completion(stream=True, **settings)
    assert "".join(one.choices[0].delta.content or "" for one in pieces) == first.message.content


def check_hosted_vllm(target: Target) -> None:
    """the provider hosted_vllm gives the same answer"""
    settings: Any = {"messages": QUESTION, "max_tokens": 8, "seed": 3}
    first, second = (
        litellm.completion(**_settings(target, provider), **settings).choices[0].message.content
        for provider in ("openai", "hosted_vllm")
    )
    assert first == second


def check_text_completion(target: Target) -> None:
    """text_completion()"""
    settings = _settings(target, "text-completion-openai")
    answer = litellm.text_completion(prompt="The sky is", max_tokens=4, temperature=0, **settings)
    assert answer.choices[0].text and answer.usage.completion_tokens == 4


def check_structured(target: Target) -> None:
    """response_format with a pydantic model"""
    answer = litellm.completion(
        messages=QUESTION, response_format=City, max_tokens=64, seed=1, **_settings(target, "hosted_vllm")
    )
    City.model_validate_json(answer.choices[0].message.content)


def check_tools(target: Target) -> None:
    """a required tool call"""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
            },
        },
    }
    answer = litellm.completion(
        messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=64, seed=1, **_settings(target)
    )
    (call, *_) = answer.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city"}


def check_responses(target: Target) -> None:
    """responses()"""
    answer = litellm.responses(input="Name three rivers.", max_output_tokens=8, **_settings(target))
    assert answer.output[0].content[0].text


def check_embeddings(target: Target) -> None:
    """embedding(), the same alone and in a batch"""
    several = litellm.embedding(input=["a holdfast", "the sea"], encoding_format="float", **_settings(target))
    alone = litellm.embedding(input=["a holdfast"], encoding_format="float", **_settings(target))
    assert several.data[0]["embedding"] == alone.data[0]["embedding"]


def ask(target: Target, prompt: str, seed: int) -> str:
    messages = [{"role": "user", "content": prompt}]
    settings = {**_settings(target), "temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed}
    return str(litellm.completion(messages=messages, **settings).choices[0].message.content)
