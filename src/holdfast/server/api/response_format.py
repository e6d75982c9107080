"""Parses structured output fields: OpenAI's `response_format`, vLLM's `structured_outputs` and
`guided_*`.

A request may use one of them. Schemas are always enforced, so `strict` is accepted and changes
nothing.
"""

import re
from collections.abc import Callable, Mapping

from holdfast.core.sampling_params import show
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.api.schema.requests import GenerationRequest
from holdfast.server.errors import refuse_unknown
from holdfast.server.tools.tool_config import MAX_SCHEMA_DEPTH, is_nested_deeper

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def parse_structured_output(body: GenerationRequest) -> StructuredOutput | None:
    """The structured output a body asks for, if any.

    Raises `InvalidRequest` for two, or for an invalid one, and `ApiError` for an unknown field.
    """
    found: dict[str, StructuredOutput] = {}
    for name, parse in _PARSERS.items():
        value = getattr(body, name)
        output = None if value is None else parse(name, value)
        if output is not None:
            found[name] = output
    if len(found) > 1:
        raise InvalidRequest(
            f"{' and '.join(found)} cannot be combined; a request can have one structured output"
        )
    return next(iter(found.values()), None)


def _parse_response_format(path: str, value: object) -> StructuredOutput | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path} must be an object with a type, not {show(value)}")
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f'{path}.type must be "text", "json_object" or "json_schema", not {show(kind)}')
    refuse_unknown(path, value, ("type", "json_schema", "schema"))
    for field, required in (("json_schema", "json_schema"), ("schema", "json_object")):
        if kind != required and value.get(field) is not None:
            raise InvalidRequest(f'{path}.{field} requires the type "{required}", not {show(kind)}')
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")
        return StructuredOutput(json_object=True) if schema is None else _parse_object_schema(path, schema)
    return _parse_named_schema(f"{path}.json_schema", value.get("json_schema"))


def _parse_object_schema(path: str, schema: object) -> StructuredOutput:
    """The schema of `json_object`, llama.cpp's way to ask for one. Any object fits an empty one."""
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"{path}.schema must be a JSON schema that is an object, not {show(schema)}")
    return _parse_schema(f"{path}.schema", schema) if schema else StructuredOutput(json_object=True)


def _parse_named_schema(path: str, value: object) -> StructuredOutput:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path} must be an object with a name and a schema, not {show(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}.name must be 1 to 64 letters, digits, underscores and dashes, not {show(name)}"
        )
    refuse_unknown(path, value, ("name", "description", "schema", "strict"))
    if not isinstance(value.get("strict"), bool | None):
        raise InvalidRequest(f"{path}.strict must be true or false, not {show(value['strict'])}")
    if not isinstance(value.get("description"), str | None):
        raise InvalidRequest(f"{path}.description must be a string, not {show(value['description'])}")
    if not isinstance(value.get("schema"), Mapping):
        raise InvalidRequest(f"{path}.schema must be a JSON schema that is an object")
    return _parse_schema(f"{path}.schema", value["schema"])


def _parse_schema(path: str, value: object) -> StructuredOutput:
    if not isinstance(value, str | Mapping | bool):
        raise InvalidRequest(f"{path} must be a JSON schema, as an object or a string, not {show(value)}")
    if is_nested_deeper(value, MAX_SCHEMA_DEPTH):
        raise InvalidRequest(f"{path} is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return StructuredOutput(json_schema=value)


def _parse_structured_outputs(path: str, value: object) -> StructuredOutput | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path} must be an object, not {show(value)}")
    refuse_unknown(path, value, tuple(_KINDS))
    given = [kind for kind in _KINDS if value.get(kind) not in (None, False)]
    if len(given) != 1:
        raise InvalidRequest(f"{path} must have exactly one of {', '.join(_KINDS)}; it has {len(given)}")
    return _KINDS[given[0]](f"{path}.{given[0]}", value[given[0]])


def _parse_object(path: str, value: object) -> StructuredOutput:
    if value is not True:
        raise InvalidRequest(f"{path} must be true or false, not {show(value)}")
    return StructuredOutput(json_object=True)


def _parse_regex(path: str, value: object) -> StructuredOutput:
    return StructuredOutput(regex=_check_text(path, value))


def _parse_grammar(path: str, value: object) -> StructuredOutput:
    return StructuredOutput(lark=_check_text(path, value))


def _parse_choice(path: str, value: object) -> StructuredOutput:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{path} must be a list of strings, not {show(value)}")
    return StructuredOutput(choice=value)


def _check_text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{path} must be a string that is not empty, not {show(value)}")
    return value


_Parser = Callable[[str, object], StructuredOutput | None]
_KINDS: dict[str, _Parser] = {
    "json": _parse_schema,
    "regex": _parse_regex,
    "choice": _parse_choice,
    "grammar": _parse_grammar,
    "json_object": _parse_object,
}
_PARSERS: dict[str, _Parser] = {
    "response_format": _parse_response_format,
    "structured_outputs": _parse_structured_outputs,
    "guided_json": _parse_schema,
    "guided_regex": _parse_regex,
    "guided_choice": _parse_choice,
    "guided_grammar": _parse_grammar,
}
