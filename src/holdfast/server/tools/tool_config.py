"""The tools a client offers and which of them may be called, checked. A `ToolConfig` that exists is consistent.

Nothing is judged here that needs a grammar: whether a schema can be forced on an answer is said when it is compiled.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.core.sampling_params import is_unicode, show
from holdfast.errors import InvalidRequest

MAX_TOOLS = 128
MAX_TOOLS_CHARS = 1 << 17  # of all of them together, written as JSON
MAX_SCHEMA_DEPTH = 64

ToolChoiceMode = Literal["none", "auto", "required", "named"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """One function. `parameters` is its JSON schema as text; none: it takes no arguments."""

    name: str
    description: str | None = None
    parameters: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """What its arguments are: always the schema of an object."""
        if self.parameters is None:
            return {**_NO_PARAMETERS, "additionalProperties": False}
        return {"type": "object", **json.loads(self.parameters)}

    def shown(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = _NO_PARAMETERS if self.parameters is None else json.loads(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolConfig:
    """What one request says about tools. `called` is the name of the tool that must be called, where one is named."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoiceMode = "none"
    called: str | None = None
    parallel: bool = True

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools the model is told of. With "none" it is told of none, so that it does not write calls as text."""
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools an answer may call."""
        if self.choice == "named":
            return tuple(tool for tool in self.tools if tool.name == self.called)
        return self.offered

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice in ("required", "named")


def parse_tools(tools: object = None, choice: object = None, parallel: object = None) -> ToolConfig:
    """The body's `tools`, `tool_choice` and `parallel_tool_calls`, or `InvalidRequest`. None is a field left out."""
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequest(f"parallel_tool_calls must be true or false, not {show(parallel)}")
    read = _read_list(tools)
    kind, called = _read_choice(choice, has_tools=bool(read))
    if not read and kind != "none":
        raise InvalidRequest("tool_choice needs tools; the request has none")
    if called is not None and all(tool.name != called for tool in read):
        raise InvalidRequest(f"tool_choice names {show(called)}, which is none of the tools")
    return ToolConfig(read, kind, called, parallel is not False)


def _read_list(tools: object) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise InvalidRequest(f"tools must be a list of objects, not {type(tools).__name__}")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools holds {len(tools)} tools; at most {MAX_TOOLS} are allowed")
    read = tuple(_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(read):
        if tool.name in seen:
            raise InvalidRequest(f"tools[{index}].function.name {show(tool.name)} is taken by another tool")
        seen.add(tool.name)
    if sum(len(tool.description or "") + len(tool.parameters or "") for tool in read) > MAX_TOOLS_CHARS:
        raise InvalidRequest(f"tools is too large: more than {MAX_TOOLS_CHARS} characters")
    return read


def _read_tool(place: str, tool: object) -> Tool:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{place} must be an object with a type and a function")
    if tool.get("type") != "function":
        raise InvalidRequest(f'{place}.type must be "function", not {show(tool.get("type"))}')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{place}.function must be an object with a name")
    place += ".function"
    description = function.get("description")
    if description is not None:
        _check_text(f"{place}.description", description)
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(f"{place}.strict must be true or false, not {show(function['strict'])}")
    return Tool(
        _read_name(f"{place}.name", function.get("name")),
        description,
        _read_parameters(f"{place}.parameters", function.get("parameters")),
    )


def _read_name(place: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{place} must be 1 to 64 letters, digits, underscores and dashes, not {show(name)}"
        )
    return name


def _read_parameters(place: str, schema: object) -> str | None:
    if schema is None:
        return None
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"{place} must be a JSON schema that is an object, not {type(schema).__name__}")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f'{place}.type must be "object", not {show(schema["type"])}')
    if not isinstance(schema.get("properties", {}), Mapping):
        raise InvalidRequest(f"{place}.properties must be an object, not {show(schema['properties'])}")
    required = schema.get("required", [])
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        raise InvalidRequest(f"{place}.required must be a list of strings, not {show(required)}")
    if is_deep(schema, MAX_SCHEMA_DEPTH):
        raise InvalidRequest(f"{place} is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{place} cannot be written as JSON: {error}") from None
    _check_text(place, text)
    return text


def is_deep(value: object, most: int) -> bool:
    """Whether objects and lists stand in each other more than so many levels deep. Needs no stack of its own."""
    level: list[object] = [value]
    for _ in range(most + 1):
        inner: list[object] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
        if not inner:
            return False
        level = inner
    return True


def _check_text(place: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{place} must be a text, not {show(text)}")
    if not is_unicode(text):
        raise InvalidRequest(f"{place} is no valid Unicode: it holds a lone surrogate")


def _read_choice(choice: object, *, has_tools: bool) -> tuple[ToolChoiceMode, str | None]:
    if choice is None:
        return ("auto" if has_tools else "none"), None
    if choice == "none" or choice == "auto" or choice == "required":
        return choice, None
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            raise InvalidRequest(
                'tool_choice of type "allowed_tools" is not supported; send only the tools that may be called'
            )
        function = choice.get("function")
        if choice.get("type") == "function" and isinstance(function, Mapping):
            name = function.get("name")
            if isinstance(name, str):
                return "named", name
    raise InvalidRequest(
        'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}, '
        f"not {show(choice)}"
    )
