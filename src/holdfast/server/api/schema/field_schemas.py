"""JSON schemas of fields that pydantic does not validate: tools, and maps with numeric keys.

They appear only in the OpenAPI document. `tools.tool_config` and `api.sampling` validate these fields,
with better messages.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
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
LogitBias = Annotated[dict[str, float], WithJsonSchema(_LOGIT_BIAS)]
