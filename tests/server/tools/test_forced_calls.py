"""Forced calls: even a random model writes only calls with valid arguments."""

import itertools
import json
import random
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import ParsedMessage, ToolCallDelta, ToolCallIds, merge_deltas
from holdfast.server.tools.forced_calls import (
    MAX_FORCED_CALLS,
    ForcedToolParser,
    calls_or_json_grammar,
    explain_grammar_error,
    forced_grammar,
)
from holdfast.server.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat, choose_format
from holdfast.server.tools.tool_config import ToolConfig, parse_tools
from support.grammar_walks import HARNESSES, GrammarHarness, HarnessFactory, byte_harness, needs_llguidance
from support.tool_parsing import parse_text

jsonschema = pytest.importorskip("jsonschema")

HIDDEN = choose_format("<tool_call>", ["<tool_call>"])
FORMATS = [
    pytest.param(one, id=name)
    for name, one in {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "hidden": HIDDEN}.items()
]
IDS = ToolCallIds(b"key")
TREE = {
    "type": "object",
    "properties": {"leaf": {"$ref": "#/$defs/small"}, "below": {"$ref": "#"}},
    "required": ["leaf"],
    "additionalProperties": False,
    "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}},
}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8, "description": '<tool_call> %json " start: /x/ }'},
        "unit": {"$ref": "#/definitions/small"},
        "days": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city"],
    "definitions": {"small": {"enum": ["°C", "°F", '"quoted" \\ }']}},
}
PARAMETERS: dict[str, Any] = {
    "weather": CITY,
    "weather_2": TREE,
    "now": None,
    "-": {"properties": {"x": {"const": 1}}},
}


def tools(*names: str) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": one, "parameters": PARAMETERS[one]}}
        for one in names or PARAMETERS
    ]


def use_of(choice: str, *, parallel: bool = True) -> ToolConfig:
    tool_choice: Any = (
        choice if choice in ("auto", "required") else {"type": "function", "function": {"name": choice}}
    )
    return parse_tools(tools(), tool_choice, parallel)


def walk(bench: GrammarHarness, output: StructuredOutput, seed: int) -> tuple[str, bool]:
    """Random text that the grammar allows, and whether it is complete.

    Where it may end, it ends with probability 1/2.
    """
    chance, ids = random.Random(seed), []
    grammar = bench.compiler.compile(output)
    ends = sum(1 << id_ for id_ in bench.eos_ids)
    for _ in range(1500):
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        bits = int.from_bytes(mask, "little")
        if bits & ends and (not bits & ~ends or chance.random() < 0.5):
            return bench.tokenizer.decode(ids), True
        ids.append(bench.choose(bits & ~ends, chance))
        grammar.commit(ids[-1])
    return bench.tokenizer.decode(ids), False


def read(text: str, tool_format: ToolFormat, config: ToolConfig) -> ParsedMessage:
    return parse_text(ForcedToolParser(tool_format, config.callable, IDS), text)


def check(message: ParsedMessage, config: ToolConfig) -> None:
    schemas = {tool.name: tool.schema for tool in config.callable}
    for call in message.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@needs_llguidance
@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("choice", ["required", "required, one", "weather", "weather_2"])
def test_random_text_under_the_grammar_is_valid_calls(
    make: HarnessFactory, tool_format: ToolFormat, choice: str
) -> None:
    config = use_of(choice.removesuffix(", one"), parallel=choice == "required")
    output, num_calls, num_ended = forced_grammar(config, tool_format), [], 0
    for seed in range(16):
        text, ended = walk(make(), output, seed)
        message = read(text, tool_format, config)
        num_ended += ended
        if ended:
            assert message.content is None
            check(message, config)
            num_calls.append(len(message.calls))
            chance = random.Random(seed)
            places = sorted({0, len(text), *(chance.randrange(len(text)) for _ in range(9))})
            reader = ForcedToolParser(tool_format, config.callable, IDS)
            pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
            assert merge_deltas(delta for piece in pieces for delta in reader.feed(piece)) == message
            # the auto parser finds the same calls
            names = [tool.name for tool in config.callable]
            assert parse_text(AutoToolParser(tool_format, names, IDS), text) == message
    assert num_ended >= 8
    assert min(num_calls) >= 1
    if choice != "required" or not tool_format.many:
        assert max(num_calls) == 1
    else:
        assert max(num_calls) > 1


def allows(output: StructuredOutput, text: str) -> bool:
    """Whether the grammar accepts this text as complete."""
    bench = byte_harness()
    ids = [*bench.encode(text), min(bench.eos_ids)]
    return bench.compiler.compile(output).count_valid(ids) == len(ids)


NOW = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": '{"name": "now", "arguments": {}}',
}


@needs_llguidance
def test_forced_text_of_each_format() -> None:
    one, many = use_of("now"), use_of("required")
    assert allows(forced_grammar(one, HERMES), NOW["hermes"])
    assert not allows(forced_grammar(one, HERMES), f"{NOW['hermes']}\n{NOW['hermes']}")
    assert allows(forced_grammar(many, HERMES), f"{NOW['hermes']}\n{NOW['hermes']}")
    assert allows(forced_grammar(one, LLAMA3), '{"name": "now", "parameters": {}}')
    assert allows(forced_grammar(one, MISTRAL), f"[{NOW['mistral']}]")
    assert allows(forced_grammar(many, MISTRAL), f"[{NOW['mistral']}, {NOW['mistral']}]")
    assert allows(forced_grammar(many, HIDDEN), f"[{NOW['mistral']}]")
    assert not allows(forced_grammar(many, MISTRAL), "[]")
    assert not allows(forced_grammar(use_of("weather"), MISTRAL), f"[{NOW['mistral']}]")


@needs_llguidance
def test_number_of_forced_calls_is_limited() -> None:
    output = forced_grammar(use_of("required"), MISTRAL)
    most = ", ".join([NOW["mistral"]] * MAX_FORCED_CALLS)
    assert allows(output, f"[{most}]")
    assert not allows(output, f"[{most}, {NOW['mistral']}]")


def parameters(schema: Any) -> tuple[ToolConfig, StructuredOutput]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    config = parse_tools([tool], "required", False)
    return config, forced_grammar(config, LLAMA3)


@needs_llguidance
@pytest.mark.parametrize(
    ("schema", "arguments", "allowed"),
    [
        (None, "{}", True),
        (None, '{"a": 1}', False),
        ({"type": "object"}, '{"a": 1}', True),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {"type": "null"}}}}}, '{"b": null}', True),
        (TREE, '{"leaf": 1, "below": {"leaf": 2, "below": {"leaf": 99}}}', True),
        (TREE, '{"leaf": 1, "below": {"leaf": 100}}', False),
        (
            {"properties": {"x": {}}, "x-guidance": {"lenient": True, "whitespace_pattern": " *"}},
            '{   "x": 1}',
            False,
        ),
    ],
)
def test_grammar_allows_exactly_valid_arguments(schema: Any, arguments: str, allowed: bool) -> None:
    _, output = parameters(schema)
    assert allows(output, f'{{"name": "f", "parameters": {arguments}}}') == allowed


@needs_llguidance
@pytest.mark.parametrize(
    ("schema", "expected_message"),
    [
        ({"properties": {"a": {"not": {}}}}, "'bad' cannot be compiled to a grammar: Unimplemented keys"),
        (
            {"properties": {"a": {"$ref": "#/$defs/none"}}},
            "'bad' cannot be compiled to a grammar: Pointer '/\\$defs/none' does not exist$",
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "("}}},
            "cannot be compiled to a grammar: unclosed group$",
        ),
    ],
    ids=range(3),
)
def test_grammar_error_names_the_tool(schema: Any, expected_message: str) -> None:
    sent = [*tools("weather", "now"), {"type": "function", "function": {"name": "bad", "parameters": schema}}]
    config = parse_tools(sent, "required")
    with pytest.raises(InvalidRequest) as refusal:
        byte_harness().compiler.compile(forced_grammar(config, HERMES))
    with pytest.raises(InvalidRequest, match=expected_message):
        raise InvalidRequest(explain_grammar_error(str(refusal.value), config))


@needs_llguidance
def test_objects_are_closed_in_calls_and_in_json_beside_them() -> None:
    nested = {
        "type": "object",
        "properties": {"in": {"type": "object", "properties": {"id": {"type": "null"}}}},
    }
    schemas = (nested, {**nested, "required": ["in"]})
    for schema in schemas:
        _, output = parameters(schema)
        assert allows(output, '{"name": "f", "parameters": {"in": {"id": null}}}')
        assert not allows(output, '{"name": "f", "parameters": {"in": {"z": null}}}')
        beside = calls_or_json_grammar(use_of("auto"), HERMES, StructuredOutput(json_schema=schema))
        assert allows(beside, '{"in": {"id": null}}')
        assert not allows(beside, '{"in": {"id": null}, "z": 1}')
        assert not allows(beside, '{"in": {"z": null}}')
        assert not allows(beside, '{"in":\n{"id": null}}')


@needs_llguidance
def test_grammar_error_names_the_structured_output() -> None:
    config = use_of("auto")
    output = calls_or_json_grammar(config, HERMES, StructuredOutput(json_schema={"type": "text"}))
    with pytest.raises(InvalidRequest) as refusal:
        byte_harness().compiler.compile(output)
    assert (
        explain_grammar_error(str(refusal.value), config)
        == "the structured output cannot be compiled to a grammar: Invalid type: text"
    )


@needs_llguidance
@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize(
    "output",
    [{"json_object": True}, {"json_schema": {"type": "array", "items": {"type": "integer"}}}],
    ids=str,
)
def test_calls_or_json_grammar(tool_format: ToolFormat, output: dict[str, Any]) -> None:
    config, answer = use_of("auto"), StructuredOutput(**output)
    either = calls_or_json_grammar(config, tool_format, answer)
    messages = []
    for seed in range(12):
        text, ended = walk(byte_harness(), either, seed)
        if ended:
            messages.append(parse_text(AutoToolParser(tool_format, PARAMETERS, IDS), text))
    for message in messages:
        check(message, config)
        if not message.calls:
            jsonschema.validate(
                json.loads(message.content or ""), output.get("json_schema", {"type": "object"})
            )
    assert messages
    frame, name = tool_format.frame, "now"
    call = f"{frame.before}{frame.opening}{name}{frame.middle}{{}}{frame.closing}{frame.after}"
    assert allows(either, call)
    assert allows(either, "[1, 2]") == ("json_schema" in output)


def test_arguments_are_streamed() -> None:
    reader = ForcedToolParser(HERMES, use_of("required").callable, IDS)
    assert reader.feed('<tool_call>\n{"name": "weather", "argu') == []
    (first,) = reader.feed('ments": ')
    assert first == ToolCallDelta(0, "", IDS.make(0, "weather"), "weather")
    assert reader.feed('{"city": "P') == [ToolCallDelta(0, '{"city": "P')]
    assert reader.feed('aris"}}\n</tool') == [ToolCallDelta(0, 'aris"}')]
    assert reader.feed('_call>\n<tool_call>\n{"name": "now", "arguments": {}') == [
        ToolCallDelta(1, "", IDS.make(1, "now"), "now"),
        ToolCallDelta(1, "{}"),
    ]
    assert reader.finish() == []


@pytest.mark.parametrize("tool_format", FORMATS)
def test_forced_text_may_be_truncated_anywhere(tool_format: ToolFormat) -> None:
    config, frame = use_of("required"), tool_format.frame
    written = [("weather", '{"city": "}]\\"\\\\"}'), ("weather_2", '{"leaf": 1}')][
        : 2 if tool_format.many else 1
    ]
    calls = [frame.opening + name + frame.middle + arguments + frame.closing for name, arguments in written]
    text = frame.before + frame.between.join(calls) + frame.after
    for end in range(len(text) + 1):
        found = read(text[:end], tool_format, config).calls
        for call, (name, arguments) in zip(found, written, strict=False):
            assert call.name == name and arguments.startswith(call.arguments)
    assert [(call.name, call.arguments) for call in found] == written
