"""Every kind of form, walked at random: the end is allowed exactly where the text is what was asked for."""

import json
import random
import re
from typing import Any

import pytest

from support.grammar_walks import BENCHES, BenchMaker, byte_bench, needs_llguidance

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


def walk_all(make: BenchMaker, form: dict[str, Any], is_complete: Any, num_walks: int = 8) -> None:
    bench = make()
    ended = 0
    for seed in range(num_walks):
        grammar = bench.compile(**form)
        for text, bits in bench.walk(grammar, random.Random(seed)):
            ends = {bool(bits >> id_ & 1) for id_ in bench.eos_ids}
            in_character = text.endswith("\ufffd")
            assert ends == {not in_character and is_complete(text)}, text
            assert not bits & ~bench.written
        ended += is_complete(text)
        assert grammar.problem is None
    assert ended >= num_walks // 2


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_json_schema(make: BenchMaker, name: str) -> None:
    schema = SCHEMAS[name]
    walk_all(make, {"json_schema": schema}, lambda text: is_json(text, schema))


@pytest.mark.parametrize("make", BENCHES)
def test_json_object(make: BenchMaker) -> None:
    walk_all(make, {"json_object": True}, lambda text: is_json(text, {"type": "object"}))


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize("regex", REGEXES)
def test_regex(make: BenchMaker, regex: str) -> None:
    walk_all(make, {"regex": regex}, lambda text: re.fullmatch(regex, text) is not None)


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize("choices", CHOICES)
def test_choice(make: BenchMaker, choices: tuple[str, ...]) -> None:
    walk_all(make, {"choice": choices}, lambda text: text in choices)


@pytest.mark.parametrize("make", BENCHES)
def test_lark(make: BenchMaker) -> None:
    def is_sum(text: str) -> bool:
        previous = None
        while text != previous:  # innermost first
            previous, text = text, re.sub(r"\((\d+)\)|\b(\d+)[+*](\d+)\b", "1", text)
        return re.fullmatch(r"\d+", text) is not None

    walk_all(make, {"lark": ARITHMETIC}, is_sum)


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"json_object": True}, '{"a":1,"b":[true,null,"x"]}'),
        ({"json_object": True}, '{"a": 1.5e-3, "b": {"c": "日本 \\n"}}'),
        ({"json_object": True}, '{\n  "a": {\n    "b": []\n  }\n}'),
        *[({"choice": choices}, text) for choices in CHOICES for text in choices],
        ({"lark": 'start: "x" %json {"type": "integer"} "y"'}, "x-12y"),
        ({"lark": "start: WORD\n%import common.WORD"}, "Hello"),
        ({"regex": "(?s).*"}, "any\ntext 日本"),
        ({"regex": "a/b\\/c\nd"}, "a/b/c\nd"),
    ],
)
def test_what_is_asked_for_can_be_written(make: BenchMaker, form: dict[str, Any], text: str) -> None:
    bench = make()
    ids = [*bench.encode(text), min(bench.eos_ids)]
    if set(ids[:-1]) & bench.tokenizer.special_ids:
        ids = [id_ for part in text for id_ in bench.encode(part)] + ids[-1:]
    grammar = bench.compile(**form)
    assert grammar.count_valid(ids) == len(ids)
    for id_ in ids:
        (mask,) = grammar.masks((), 1)
        assert mask is not None and mask[id_ // 8] >> id_ % 8 & 1
        grammar.commit(id_)


@pytest.mark.parametrize(
    "text", [' {"a":1}', '{"a":   1}', '{"a":\n\n1}', '{"a":1} ', '{"a":1}{', "[]", '{"a":\n' + " " * 33]
)
def test_white_space_is_bounded(text: str) -> None:
    bench = byte_bench()
    assert bench.compile(json_object=True).count_valid(bench.encode(text)) < len(text)


def test_a_schema_cannot_steer_the_compiler() -> None:
    bench = byte_bench()
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+", "lenient": True}}
    assert bench.compile(json_schema=schema).count_valid(bench.encode('{"a":   1}')) < 10
