"""langchain-openai: ChatOpenAI and OpenAIEmbeddings."""

from typing import Any

from checks import MAX_TOKENS, TEMPERATURE, Target, run_recipe
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

CLIENT = "langchain-openai"
QUESTION = "Name three rivers of Europe."
KEY = SecretStr("unused")


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    is_port: bool


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def _model(target: Target, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=target.model, base_url=target.base_url, api_key=KEY, max_retries=0, timeout=120, **settings
    )


def check_recipe(target: Target) -> None:
    """the example of docs/recipes.md"""
    run_recipe("LangChain", target)


def check_invoke(target: Target) -> None:
    """invoke, batch and stream give one answer"""
    model = _model(target, max_tokens=8, seed=3)
    answer = model.invoke(QUESTION)
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] <= 8
    assert [one.content for one in model.batch([QUESTION] * 3)] == [answer.content] * 3
    assert "".join(str(piece.content) for piece in model.stream(QUESTION)) == answer.content


def check_logprobs(target: Target) -> None:
    """logprobs in the response metadata, twice the same"""
    model = _model(target, max_tokens=4, logprobs=True, top_logprobs=2)
    first, second = (model.invoke(QUESTION).response_metadata["logprobs"]["content"] for _ in range(2))
    assert first == second and len(first) <= 4


def check_structured(target: Target) -> None:
    """with_structured_output: json_schema, function_calling, json_mode"""
    model = _model(target, max_tokens=64, seed=1)
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(City, method=method).invoke(QUESTION)
        assert isinstance(found, City), method
    raw = model.with_structured_output(None, method="json_mode", include_raw=True).invoke(QUESTION)
    assert raw["raw"].content.lstrip().startswith("{")


def check_tools(target: Target) -> None:
    """bind_tools with a required call"""
    model = _model(target, max_tokens=64, seed=1).bind_tools([get_weather], tool_choice="required")
    answer = model.invoke(QUESTION)
    assert answer.tool_calls or answer.invalid_tool_calls  # a random city name may run to max_tokens
    (call, *_) = answer.tool_calls or answer.invalid_tool_calls
    assert call["name"] == "get_weather"


def check_responses(target: Target) -> None:
    """the Responses API (use_responses_api=True)"""
    answer = _model(target, max_tokens=16, use_responses_api=True).invoke(QUESTION)
    assert answer.text


def check_embeddings(target: Target) -> None:
    """OpenAIEmbeddings, the same alone and in a batch"""
    embeddings = OpenAIEmbeddings(
        model=target.model, base_url=target.base_url, api_key=KEY, check_embedding_ctx_length=False
    )
    several = embeddings.embed_documents(["a holdfast", "the sea"])
    assert several[0] == embeddings.embed_query("a holdfast")


def ask(target: Target, prompt: str, seed: int) -> str:
    return str(
        _model(target, temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed).invoke(prompt).content
    )
