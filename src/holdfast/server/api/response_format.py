"""The structured output of a body: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`, llama.cpp's
`json_schema`, SGLang's `regex`.

A request may use one of them. Schemas are always enforced, so `strict` changes nothing.
"""

from typing import Any

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.api.schema.requests import (
    GenerationRequest,
    ObjectFormat,
    SchemaFormat,
    StructuredOutputs,
    TextFormat,
)


def parse_structured_output(body: GenerationRequest) -> StructuredOutput | None:
    """Return the structured output a body asks for, if any. Raises `InvalidRequest` for two, or for an invalid one."""
    fields: dict[str, dict[str, Any]] = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_kinds(body.structured_outputs),
        "guided_json": {"json_schema": body.guided_json},
        "guided_regex": {"regex": body.guided_regex},
        "guided_choice": {"choice": body.guided_choice},
        "guided_grammar": {"lark": body.guided_grammar},
        "json_schema": {"json_schema": body.json_schema},
        "regex": {"regex": body.regex},
    }
    asked = {name: kinds for name, kinds in fields.items() if any(one is not None for one in kinds.values())}
    if len(asked) > 1:
        raise InvalidRequest(
            f"{' and '.join(asked)} cannot be combined; a request can have one structured output"
        )
    for kinds in asked.values():
        return StructuredOutput(**{kind: value for kind, value in kinds.items() if value is not None})
    return None


def _of_format(asked: TextFormat | ObjectFormat | SchemaFormat | None) -> dict[str, Any]:
    if isinstance(asked, SchemaFormat):
        return {"json_schema": asked.json_schema.schema_}
    if isinstance(asked, ObjectFormat):  # any object fits an empty schema
        return {"json_schema": asked.schema_} if asked.schema_ else {"json_object": True}
    return {}


def _of_kinds(asked: StructuredOutputs | None) -> dict[str, Any]:
    if asked is None:
        return {}
    json_object = asked.json_object or None
    kinds = {"json_schema": asked.json_, "json_object": json_object, "regex": asked.regex}
    return {**kinds, "choice": asked.choice, "lark": asked.grammar}
