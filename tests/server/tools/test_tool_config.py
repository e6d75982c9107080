"""Tools, tool_choice and parallel_tool_calls that fit together, and those that do not."""

import json
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
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
        ([tool("a"), tool("b"), tool("a")], r"tools\[2\].function.name 'a' is used by two tools"),
        ([tool(parameters={"type": "nothing"})], 'type must be "object"'),
        ([tool(parameters={"type": "array"})], "type must be \"object\", not 'array'"),
        ([tool(parameters={"properties": []})], "properties must be an object"),
        ([tool(parameters={"required": "city"})], "required must be a list"),
        ([tool(parameters={"title": "x" * (1 << 17)})], "too large"),
        ([tool(str(number), description="x" * 2000) for number in range(100)], "too large"),
    ],
    ids=range(8),
)
def test_invalid_tools_are_refused(sent: Any, expected_message: str) -> None:
    with pytest.raises(InvalidRequest, match=expected_message) as refusal:
        parse_tools(sent)
    assert len(str(refusal.value)) < 300


def test_choice_of_another_tool_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="names 'rain', which is not one of the tools"):
        parse_tools([tool()], {"type": "function", "function": {"name": "rain"}})


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "a"}}])
def test_tool_choice_requires_tools(choice: Any) -> None:
    for tools in (None, []) if choice != "auto" else (None,):
        with pytest.raises(InvalidRequest, match="tool_choice requires tools"):
            parse_tools(tools, choice)
