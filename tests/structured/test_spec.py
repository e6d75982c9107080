"""Every kind of structured output, walked at random: the end is allowed exactly where the text
matches."""

import json
import random
import re
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.structured.spec import check_grammar
from support.grammar_walks import HARNESSES, HarnessFactory, byte_harness, needs_llguidance

pytestmark = needs_llguidance
jsonschema = pytest.importorskip("jsonschema")

SCHEMAS: dict[str, Any] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blü"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "number": {"type": "number", "minimum": 2.5, "exclusiveMaximum": 1000},
    "any": True,
    "union": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": {"a": [1, 'x"y\n']}}]},
    "recursive": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "leaf": {"type": "integer"},
                    "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$", "maxLength": 9},
    "prefix": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
        "minItems": 2,
    },
}
REGEXES = [
    r"[a-z]+@[a-z]+\.(com|org)",
    r"^\d{4}-\d\d-\d\d$",
    r"(?:ä|b/c|\n|\\|\"|\.){1,5}",
    r"a*",
    "(?i)yes|no?",
    "[^x]{3}",
]
CHOICES = [
    ("yes", "yesterday", "no"),
    ("ä", "ü😀", "日本"),
    ('say "hi"', "back\\slash", "/", "a\nb", "\t", " lead", "trail ", "{x}", "%json", "<|im_end|>", "\x7f"),
]
ARITHMETIC = 'start: sum\nsum: sum "+" product | product\nproduct: product "*" atom | atom\natom: /[0-9]{1,4}/ | "(" sum ")"'


def is_json(text: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def walk_all(make: HarnessFactory, spec: dict[str, Any], is_complete: Any, num_walks: int = 5) -> None:
    harness = make()
    num_complete = 0
    for seed in range(num_walks):
        grammar = harness.compile(**spec)
        for text, bits in harness.walk(grammar, random.Random(seed)):
            allows_eos = {bool(bits >> id_ & 1) for id_ in harness.eos_ids}
            in_character = text.endswith("\ufffd")
            assert allows_eos == {not in_character and is_complete(text)}, text
            assert not bits & ~harness.written
        num_complete += is_complete(text)
        assert grammar.problem is None
    assert num_complete >= num_walks // 2


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_json_schema(make: HarnessFactory, name: str) -> None:
    schema = SCHEMAS[name]
    walk_all(make, {"json_schema": schema}, lambda text: is_json(text, schema))


@pytest.mark.parametrize("make", HARNESSES)
def test_json_object(make: HarnessFactory) -> None:
    walk_all(make, {"json_object": True}, lambda text: is_json(text, {"type": "object"}))


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("regex", REGEXES)
def test_regex(make: HarnessFactory, regex: str) -> None:
    walk_all(make, {"regex": regex}, lambda text: re.fullmatch(regex, text) is not None)


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("choices", CHOICES)
def test_choice(make: HarnessFactory, choices: tuple[str, ...]) -> None:
    walk_all(make, {"choice": choices}, lambda text: text in choices)


@pytest.mark.parametrize("make", HARNESSES)
def test_lark(make: HarnessFactory) -> None:
    def is_sum(text: str) -> bool:
        previous = None
        while text != previous:  # innermost first
            previous, text = text, re.sub(r"\((\d+)\)|\b(\d+)[+*](\d+)\b", "1", text)
        return re.fullmatch(r"\d+", text) is not None

    walk_all(make, {"lark": ARITHMETIC}, is_sum)


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"json_object": True}, '{"a":1,"b":[true,null,"x"]}'),
        ({"json_object": True}, '{"a": 1.5e-3, "b": {"c": "日本 \\n"}}'),
        ({"json_object": True}, '{ "a" : [ 1 , 2 ] }'),
        ({"json_object": True, "json_rules": 1}, '{\n  "a": {\n    "b": []\n  }\n}'),
        *[({"choice": choices}, text) for choices in CHOICES for text in choices],
        ({"lark": 'start: "x" %json {"type": "integer"} "y"'}, "x-12y"),
        ({"lark": "start: WORD\n%import common.WORD"}, "Hello"),
        ({"regex": "(?s).*"}, "any\ntext 日本"),
        ({"regex": "a/b\\/c\nd"}, "a/b/c\nd"),
    ],
)
def test_matching_text_is_accepted(make: HarnessFactory, spec: dict[str, Any], text: str) -> None:
    harness = make()
    check_grammar(StructuredOutput(**spec))
    ids = [*harness.encode(text), min(harness.eos_ids)]
    if set(ids[:-1]) & harness.tokenizer.special_ids:
        ids = [id_ for part in text for id_ in harness.encode(part)] + ids[-1:]
    grammar = harness.compile(**spec)
    assert grammar.count_valid(ids) == len(ids)
    for id_ in ids:
        (mask,) = grammar.masks((), 1)
        assert mask is not None and mask[id_ // 8] >> id_ % 8 & 1
        grammar.commit(id_)


@pytest.mark.parametrize(
    ("rules", "texts"),
    [
        (2, [' {"a":1}', '{"a":  1}', '{"a":\n1}', '{"a":\t1}', '{"a":1} ', '{"a":1}{', "[]"]),
        (1, ['{"a":   1}', '{"a":\n\n1}', '{"a":1} ', '{"a":\n' + " " * 33]),
    ],
)
def test_white_space_is_bounded(rules: int, texts: list[str]) -> None:
    harness = byte_harness()
    for text in texts:
        grammar = harness.compile(json_object=True, json_rules=rules)
        assert grammar.count_valid(harness.encode(text)) < len(text), text


def test_schema_cannot_set_llguidance_options() -> None:
    harness = byte_harness()
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+", "lenient": True}}
    assert harness.compile(json_schema=schema).count_valid(harness.encode('{"a":   1}')) < 10
