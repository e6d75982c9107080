"""Tools combined with structured output: the constraint and the parser."""

from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import PlainTextParser
from holdfast.server.tools.forced_calls import ForcedToolParser, calls_or_json_grammar, forced_grammar
from holdfast.server.tools.formats import HERMES, MISTRAL
from holdfast.server.tools.plan import plan_tools
from holdfast.server.tools.tool_config import parse_tools
from support.tool_parsing import parse_text

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "g"}}
JSON = StructuredOutput(json_object=True)
CALL = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("structured", [None, JSON, StructuredOutput(regex="a")])
def test_without_tools_structured_output_is_unchanged(structured: StructuredOutput | None) -> None:
    for use in (parse_tools(), parse_tools(TOOLS, "none")):
        plan = plan_tools(use, HERMES, structured)
        assert plan.structured == structured and not plan.is_tool_grammar
        assert isinstance(plan.parser(b""), PlainTextParser)
        assert plan.explain("the JSON object cannot be used: x") == "the JSON object cannot be used: x"


def test_auto_is_unconstrained_or_calls_or_json() -> None:
    use = parse_tools(TOOLS)
    assert plan_tools(use, HERMES, None).structured is None
    plan = plan_tools(use, HERMES, JSON)
    assert plan.structured == calls_or_json_grammar(use, HERMES, JSON)
    assert isinstance(plan.parser(b""), AutoToolParser)
    assert plan.explain("the Lark grammar cannot be used: x").startswith("the tools' parameters cannot")
    assert plan.explain("the prompt is too long") == "the prompt is too long"


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("structured", [None, JSON], ids=["alone", "with a JSON format"])
def test_forced_call_leaves_nothing_to_a_json_format(
    choice: Any, structured: StructuredOutput | None
) -> None:
    use = parse_tools(TOOLS, choice)
    plan = plan_tools(use, HERMES, structured)
    assert plan.structured == forced_grammar(use, HERMES)
    assert isinstance(plan.parser(b""), ForcedToolParser)


@pytest.mark.parametrize("structured", [{"regex": "a"}, {"choice": ["a"]}, {"lark": "start: A"}], ids=str)
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_tools_combine_with_json_only(structured: dict[str, Any], choice: Any) -> None:
    with pytest.raises(InvalidRequest, match="only with JSON"):
        plan_tools(parse_tools(TOOLS, choice), HERMES, StructuredOutput(**structured))


def test_parsers_make_the_requests_call_ids() -> None:
    made = [
        parse_text(plan_tools(parse_tools(TOOLS, choice), HERMES, None).parser(key, place), CALL).calls[0].id
        for choice in ("auto", "required")
        for key, place in ((b"one", 0), (b"one", 1), (b"two", 0))
    ]
    assert made[:3] == made[3:] and len(set(made)) == 3
    auto = plan_tools(parse_tools(TOOLS), MISTRAL, None)
    (call,) = parse_text(auto.parser(b"one"), '[TOOL_CALLS][{"name": "f", "arguments": {}}]').calls
    assert len(call.id) == 9


def test_plan_passes_parallel_tool_calls_on() -> None:
    parser = plan_tools(parse_tools(TOOLS, "auto", False), HERMES, None).parser(b"")
    assert len(parse_text(parser, CALL + CALL).calls) == 1
