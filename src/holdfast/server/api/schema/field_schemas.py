"""JSON schemas of the fields whose content is read elsewhere: tools, and the forms of an answer.

Only the OpenAPI document shows them. What is wrong in such a field is found and said, better, by `tools` and
`response_format`.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from holdfast.server.http.json_body import Many

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_TEXT = {"type": "string", "minLength": 1}
_MAYBE_TEXT = {"type": ["string", "null"]}
_MAYBE_BOOLEAN = {"type": ["boolean", "null"]}

_FUNCTION = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "description": _MAYBE_TEXT,
        "parameters": {"type": ["object", "null"], "description": "A JSON schema of the arguments."},
        "strict": _MAYBE_BOOLEAN,
    },
    "required": ["name"],
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
_NAMED_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "description": _MAYBE_TEXT,
        "schema": {"type": "object"},
        "strict": _MAYBE_BOOLEAN,
    },
    "required": ["name", "schema"],
}
_RESPONSE_FORMAT = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["text", "json_object"]},
                "json_schema": {"type": "null"},
            },
            "required": ["type"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "json_schema"}, "json_schema": _NAMED_SCHEMA},
            "required": ["type", "json_schema"],
        },
    ]
}
_CHOICES = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1024}
_STRUCTURED_OUTPUTS = {
    "oneOf": [
        {"type": "object", "properties": {name: form}, "required": [name], "additionalProperties": False}
        for name, form in (
            ("json", {"type": ["string", "object", "boolean"]}),
            ("regex", _TEXT),
            ("choice", _CHOICES),
            ("grammar", {**_TEXT, "description": "Lark."}),
            ("json_object", {"const": True}),
        )
    ]
}
_BIASES = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": 1024,
}

_FORCED = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,8}$"},
    "additionalProperties": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 1024},
}

ToolObject = Annotated[dict[str, Any], WithJsonSchema(_TOOL)]
ToolChoices = Annotated[
    str | dict[str, Any], WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED_TOOL]})
]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(_RESPONSE_FORMAT)]
StructuredOutputs = Annotated[dict[str, Any], WithJsonSchema(_STRUCTURED_OUTPUTS)]
Biases = Annotated[dict[str, float], WithJsonSchema(_BIASES)]
ForcedThoughts = Annotated[dict[str, Many[int]], WithJsonSchema(_FORCED)]
