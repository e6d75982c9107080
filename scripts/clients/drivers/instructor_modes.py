"""instructor: every mode of its OpenAI provider."""

from typing import Any

import instructor
import openai
from checks import Target, run_recipe
from pydantic import BaseModel, Field

CLIENT = "instructor"
QUESTION: Any = [{"role": "user", "content": "Genoa is a port. Describe the city."}]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    is_port: bool


class AnyObject(BaseModel, extra="allow"):
    """Any JSON object."""


def _extract(target: Target, mode: instructor.Mode, **settings: Any) -> None:
    with openai.OpenAI(base_url=target.base_url, api_key="unused", max_retries=0, timeout=120) as plain:
        client = instructor.from_openai(plain, mode=mode)
        found, again = (
            client.create(
                model=target.model, response_model=City, messages=QUESTION, max_retries=0, **settings
            )
            for _ in range(2)
        )
    assert isinstance(found, City) and found.model_dump() == again.model_dump()


def check_recipe(target: Target) -> None:
    """the example of docs/recipes.md"""
    run_recipe("instructor", target)


def check_tools(target: Target) -> None:
    """Mode.TOOLS, twice the same object"""
    _extract(target, instructor.Mode.TOOLS, max_tokens=64)


def check_tools_strict(target: Target) -> None:
    """Mode.TOOLS_STRICT"""
    _extract(target, instructor.Mode.TOOLS_STRICT, max_tokens=64)


def check_json(target: Target) -> None:
    """Mode.JSON: a JSON object; the schema stands in the prompt only"""
    with openai.OpenAI(base_url=target.base_url, api_key="unused", max_retries=0, timeout=120) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON)
        found = client.create(
            model=target.model,
            response_model=AnyObject,
            messages=QUESTION,
            temperature=0,  # nothing bounds the object: a sampled one may have no end
            max_tokens=128,
            max_retries=0,
        )
    assert isinstance(found, AnyObject)


def check_json_schema(target: Target) -> None:
    """Mode.JSON_SCHEMA"""
    _extract(target, instructor.Mode.JSON_SCHEMA, max_tokens=64)


def check_responses_tools(target: Target) -> None:
    """Mode.RESPONSES_TOOLS"""
    _extract(target, instructor.Mode.RESPONSES_TOOLS, max_output_tokens=64)


def check_partial(target: Target) -> None:
    """create_partial: a streamed object"""
    with openai.OpenAI(base_url=target.base_url, api_key="unused", max_retries=0, timeout=120) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        stages = list(
            client.create_partial(
                model=target.model, response_model=City, messages=QUESTION, max_tokens=64, max_retries=0
            )
        )
    assert len(stages) > 1 and stages[-1].is_port is not None
