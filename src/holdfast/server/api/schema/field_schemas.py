"""JSON schemas of fields that pydantic does not validate: tools, structured output, maps with
numeric keys.

They appear only in the OpenAPI document. `tools` and `api.response_format` validate these fields,
with better messages.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_STRING = {"type": "string", "minLength": 1}
_OPTIONAL_STRING = {"type": ["string", "null"]}
_OPTIONAL_BOOLEAN = {"type": ["boolean", "null"]}

_FUNCTION = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "description": _OPTIONAL_STRING,
        "parameters": {"type": ["object", "null"], "description": "A JSON schema of the arguments."},
        "strict": _OPTIONAL_BOOLEAN,
    },
    "required": ["name"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
    "additionalProperties": False,
}
_NAMED_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "function"],
    "additionalProperties": False,
}
_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "description": _OPTIONAL_STRING,
        "schema": {"type": "object"},
        "strict": _OPTIONAL_BOOLEAN,
    },
    "required": ["name", "schema"],
    "additionalProperties": False,
}
_NULL = {"type": "null"}
_RESPONSE_FORMAT = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"type": {"const": name}, "json_schema": _NULL, "schema": _NULL} | fields,
            "required": ["type", *required],
            "additionalProperties": False,
        }
        for name, fields, required in (
            ("text", {}, ()),
            ("json_object", {"schema": {"type": ["object", "null"]}}, ()),
            ("json_schema", {"json_schema": _NAMED_SCHEMA}, ("json_schema",)),
        )
    ]
}
_CHOICES = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 1024}
_STRUCTURED_OUTPUTS = {
    "oneOf": [
        {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
        for name, schema in (
            ("json", {"type": ["string", "object", "boolean"]}),
            ("regex", _STRING),
            ("choice", _CHOICES),
            ("grammar", {**_STRING, "description": "Lark."}),
            ("json_object", {"const": True}),
        )
    ]
}
_LOGIT_BIAS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": 1024,
}

ToolObject = Annotated[dict[str, Any], WithJsonSchema(_TOOL)]
ToolChoice = Annotated[
    str | dict[str, Any], WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED_TOOL]})
]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(_RESPONSE_FORMAT)]
StructuredOutputs = Annotated[dict[str, Any], WithJsonSchema(_STRUCTURED_OUTPUTS)]
LogitBias = Annotated[dict[str, float], WithJsonSchema(_LOGIT_BIAS)]
