"""A `StructuredOutput` that exists says exactly one form, as text."""

import json
import math
from itertools import combinations
from typing import Any

import pytest

from holdfast.core.structured_output import MAX_CHOICES, MAX_GRAMMAR_CHARS, StructuredOutput
from holdfast.errors import InvalidRequest

DEEP = '{"a":' * 100_000
LOOP: list[Any] = []
LOOP.append(LOOP)

ONE_OF_EACH: dict[str, Any] = {
    "json_schema": {"type": "object"},
    "json_object": True,
    "regex": "[a-z]+",
    "choice": ["yes", "no"],
    "lark": 'start: "a"',
}

BAD: dict[str, list[Any]] = {
    "json_schema": [
        "{",
        "",
        "3",
        3,
        {"a": {1}},
        {"a": math.nan},
        {"a": LOOP},
        DEEP,
        '{"const": NaN}',
        json.dumps({"a": "x" * MAX_GRAMMAR_CHARS}),
        {"a": "x" * MAX_GRAMMAR_CHARS},
    ],
    "json_object": [1, "true", [True]],
    "regex": ["", 3, b"a", ["a"], True, "x" * (MAX_GRAMMAR_CHARS + 1)],
    "choice": ["yes", [], [""], ["a", 3], 3, True, ["x"] * (MAX_CHOICES + 1), ["x" * MAX_GRAMMAR_CHARS, "y"]],
    "lark": ["", 3, b"start", {"start": "a"}, "x" * (MAX_GRAMMAR_CHARS + 1)],
    "special_tokens": [True, 1],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{n}")
        for name, values in BAD.items()
        for n, value in enumerate(values)
    ],
)
def test_invalid_structured_output_is_refused_in_a_short_message(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StructuredOutput(**{name: value})
    assert len(str(caught.value)) < 300


def test_special_tokens_need_a_lark_grammar() -> None:
    assert StructuredOutput(lark="start: <|end|>", special_tokens=True).special_tokens
    for wrong in ({"regex": "a", "special_tokens": True}, {"lark": "start: A", "special_tokens": 1}):
        with pytest.raises(InvalidRequest, match="special_tokens must be"):
            StructuredOutput(**wrong)


def test_structured_output_is_kept_as_text() -> None:
    for kind, value in ONE_OF_EACH.items():
        form = StructuredOutput(**{kind: value})
        assert form.kind == kind and hash(form) == hash(StructuredOutput(**{kind: value}))
    assert StructuredOutput(json_schema={"type": "object"}).texts == ('{"type": "object"}',)
    assert StructuredOutput(json_schema='{"type":"object"}').texts == ('{"type":"object"}',)
    assert StructuredOutput(json_object=True).texts == ()
    assert StructuredOutput(regex="a|b").texts == ("a|b",)
    assert StructuredOutput(choice=iter(["yes", "no"])).texts == ("yes", "no")
    assert StructuredOutput(lark='start: "a"').texts == ('start: "a"',)


@pytest.mark.parametrize(("schema", "text"), [(True, "true"), (False, "false"), ("true", "true")])
def test_schema_may_be_true_or_false(schema: Any, text: str) -> None:
    """Anything, and nothing."""
    form = StructuredOutput(json_schema=schema)
    assert (form.kind, form.texts) == ("json_schema", (text,))


def test_two_fields_and_no_field_are_refused() -> None:
    for two in combinations(ONE_OF_EACH, 2):
        with pytest.raises(InvalidRequest, match=r"exactly one of .*; it has 2"):
            StructuredOutput(**{name: ONE_OF_EACH[name] for name in two})
    with pytest.raises(InvalidRequest, match="exactly one of json_schema, json_object, regex, choice, lark"):
        StructuredOutput()
    with pytest.raises(InvalidRequest, match="it has 0"):
        StructuredOutput(json_object=False)


def test_endless_choices_are_refused_without_reading_all() -> None:
    def endless() -> Any:
        for taken in range(10**9):
            assert taken <= 2 * MAX_CHOICES, "the whole list was read"
            yield str(taken)

    with pytest.raises(InvalidRequest, match=f"1 to {MAX_CHOICES} strings"):
        StructuredOutput(choice=endless())


def test_size_limits_are_inclusive() -> None:
    StructuredOutput(regex="x" * MAX_GRAMMAR_CHARS)
    StructuredOutput(choice=["x" * (MAX_GRAMMAR_CHARS // MAX_CHOICES)] * MAX_CHOICES)
