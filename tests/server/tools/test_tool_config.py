"""Validation of tools, tool_choice and parallel_tool_calls."""

import json
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.server.errors import ApiError
from holdfast.server.tools.tool_config import Tool, parse_tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: Any = "weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_visible_and_callable_tools_by_choice() -> None:
    sent = [tool("a-1", description="d", parameters=CITY, strict=True), tool("b_2", strict=None)]
    config = parse_tools(sent)
    assert config.choice == "auto" and not config.is_forced and config.parallel
    assert (
        config.tools == config.visible == config.callable == (Tool("a-1", "d", json.dumps(CITY)), Tool("b_2"))
    )
    none = parse_tools(sent, "none")
    assert none.visible == none.callable == () and len(none.tools) == 2
    required = parse_tools(sent, "required", False)
    assert required.is_forced and not required.parallel and required.callable == required.tools
    named = parse_tools(sent, {"type": "function", "function": {"name": "b_2"}})
    assert named.is_forced and named.callable == (Tool("b_2"),) and len(named.visible) == 2


def test_template_dict() -> None:
    (one, two) = parse_tools([tool("a", description="é", parameters=CITY, strict=True), tool("b")]).tools
    assert one.template_dict() == {
        "type": "function",
        "function": {"name": "a", "description": "é", "parameters": CITY},
    }
    assert two.template_dict() == {
        "type": "function",
        "function": {"name": "b", "parameters": {"type": "object", "properties": {}}},
    }


def test_schema_is_always_an_object() -> None:
    assert Tool("a").schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert Tool("a", parameters="{}").schema == {"type": "object"}
    assert Tool("a", parameters=json.dumps(CITY)).schema == CITY


@pytest.mark.parametrize(
    ("sent", "expected_message"),
    [
        ([tool(str(number)) for number in range(129)], "at most 128"),
        ([{"function": {"name": "a"}}], r'tools\[0\].type must be "function", not None'),
        ([{"type": "custom", "custom": {"name": "a"}}], "must be \"function\", not 'custom'"),
        ([{"type": "function"}], r"tools\[0\].function must be an object"),
        ([tool("a"), tool(None)], r"tools\[1\].function.name"),
        ([tool("")], "1 to 64 letters"),
        ([tool("a b")], "1 to 64 letters"),
        ([tool("a"), tool("b"), tool("a")], r"tools\[2\].function.name 'a' is used by two tools"),
        ([tool(parameters={"type": "nothing"})], 'type must be "object"'),
        ([tool(description=3)], "description must be a string"),
        ([tool(strict="yes")], "strict must be true or false"),
        ([tool(parameters=[])], "must be a JSON schema that is an object, not list"),
        ([tool(parameters="{}")], "must be a JSON schema that is an object, not str"),
        ([tool(parameters={"type": "array"})], "type must be \"object\", not 'array'"),
        ([tool(parameters={"properties": []})], "properties must be an object"),
        ([tool(parameters={"required": "city"})], "required must be a list"),
        ([tool(parameters={"title": "x" * (1 << 17)})], "too large"),
        ([tool(str(number), description="x" * 2000) for number in range(100)], "too large"),
    ],
    ids=range(18),
)
def test_invalid_tools_are_refused(sent: Any, expected_message: str) -> None:
    with pytest.raises(InvalidRequest, match=expected_message) as refusal:
        parse_tools(sent)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("choice", "expected_message"),
    [
        ("any", "tool_choice must be"),
        ({"type": "function", "name": "weather"}, "tool_choice must be"),
        ({"type": "function", "function": {"name": 1}}, "tool_choice must be"),
        ({"type": "function", "function": {"name": "rain"}}, "names 'rain', which is not one of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "send only the tools"),
    ],
)
def test_invalid_tool_choice_is_refused(choice: Any, expected_message: str) -> None:
    with pytest.raises(InvalidRequest, match=expected_message):
        parse_tools([tool()], choice)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "a"}}])
def test_tool_choice_requires_tools(choice: Any) -> None:
    for tools in (None, []) if choice != "auto" else (None,):
        with pytest.raises(InvalidRequest, match="tool_choice requires tools"):
            parse_tools(tools, choice)


@pytest.mark.parametrize(
    ("tools", "choice", "path"),
    [
        ([{**tool(), "x": 1}], None, "tools[0].x"),
        ([tool("a"), tool("b", strictly=True)], None, "tools[1].function.strictly"),
        ([tool("a")], {"type": "function", "function": {"name": "a"}, "x": 1}, "tool_choice.x"),
        ([tool("a")], {"type": "function", "function": {"name": "a", "x": 1}}, "tool_choice.function.x"),
    ],
)
def test_unknown_field_is_refused_with_its_path(tools: Any, choice: Any, path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_tools(tools, choice)
    assert (refusal.value.param, refusal.value.code) == (path, "unknown_parameter")
