"""A request's `tools`, `tool_choice` and `parallel_tool_calls`, as one consistent `ToolConfig`.

The body's parser has refused what has not the shape of a tool. Whether a schema can be compiled to a grammar is
found by the grammar compiler.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest

MAX_TOOLS = 128
MAX_TOOLS_CHARS = 1 << 17  # descriptions and parameters of all tools together

ToolChoiceMode = Literal["none", "auto", "required", "named"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """One function. `parameters` is its JSON schema as text; None: no arguments."""

    name: str
    description: str | None = None
    parameters: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, always an object's."""
        if self.parameters is None:
            return {**_NO_PARAMETERS, "additionalProperties": False}
        return {"type": "object", **json.loads(self.parameters)}

    def template_dict(self) -> dict[str, Any]:
        """Return the tool in the shape chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = _NO_PARAMETERS if self.parameters is None else json.loads(self.parameters)
        return {"type": "function", "function": function}

    @classmethod
    def from_template_dict(cls, tool: Mapping[str, Any]) -> "Tool":
        """Return the tool that `template_dict` describes."""
        function = tool["function"]
        parameters = json.dumps(function["parameters"], ensure_ascii=False)
        return cls(function["name"], function.get("description"), parameters)


@dataclass(frozen=True)
class ToolConfig:
    """The tool settings of one request.

    With choice "named", `forced_name` is the tool that must be called.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoiceMode = "none"
    forced_name: str | None = None
    parallel: bool = True

    @property
    def visible(self) -> tuple[Tool, ...]:
        """The tools in the prompt.

        Empty with "none", so that the model does not write calls as text.
        """
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.choice == "named":
            return tuple(tool for tool in self.tools if tool.name == self.forced_name)
        return self.visible

    @property
    def is_forced(self) -> bool:
        """Whether the model must call a tool."""
        return self.choice in ("required", "named")


def parse_tools(
    tools: Sequence[Mapping[str, Any]] | None = None,
    choice: Literal["none", "auto", "required"] | Mapping[str, Any] | None = None,
    parallel: bool | None = None,
) -> ToolConfig:
    """Return the settings of the three fields of a body; None is an omitted field. Raises `InvalidRequest` if
    they do not fit together."""
    parsed = _parse_list(tools)
    forced_name = choice["function"]["name"] if isinstance(choice, Mapping) else None
    kind: ToolChoiceMode = (
        "named" if isinstance(choice, Mapping) else choice or ("auto" if parsed else "none")
    )
    if kind == "auto" and tools is not None and not parsed:
        kind = "none"  # a client that adds its tools to a fixed request
    if not parsed and kind != "none":
        raise InvalidRequest("tool_choice requires tools; the request has none")
    if forced_name is not None and all(tool.name != forced_name for tool in parsed):
        raise InvalidRequest(f"tool_choice names {show(forced_name)}, which is not one of the tools")
    return ToolConfig(parsed, kind, forced_name, parallel is not False)


def _parse_list(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} tools; at most {MAX_TOOLS} are allowed")
    parsed = tuple(
        _parse_tool(f"tools[{index}].function", tool["function"]) for index, tool in enumerate(tools)
    )
    seen: set[str] = set()
    for index, tool in enumerate(parsed):
        if tool.name in seen:
            raise InvalidRequest(f"tools[{index}].function.name {show(tool.name)} is used by two tools")
        seen.add(tool.name)
    if sum(len(tool.description or "") + len(tool.parameters or "") for tool in parsed) > MAX_TOOLS_CHARS:
        raise InvalidRequest(f"tools is too large: at most {MAX_TOOLS_CHARS} characters are allowed")
    return parsed


def _parse_tool(path: str, function: Mapping[str, Any]) -> Tool:
    parameters = _parse_parameters(f"{path}.parameters", function.get("parameters"))
    return Tool(function["name"], function.get("description"), parameters)


def _parse_parameters(path: str, schema: Mapping[str, Any] | None) -> str | None:
    if schema is None:
        return None
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f'{path}.type must be "object", not {show(schema["type"])}')
    if not isinstance(schema.get("properties", {}), Mapping):
        raise InvalidRequest(f"{path}.properties must be an object, not {show(schema['properties'])}")
    required = schema.get("required", [])
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        raise InvalidRequest(f"{path}.required must be a list of strings, not {show(required)}")
    return json.dumps(schema, ensure_ascii=False)
