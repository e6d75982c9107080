"""Parsing of structured output fields: every accepted variant, and the message for every invalid
one.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.api.response_format import parse_structured_output
from holdfast.server.errors import ApiError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def ask(**fields: Any) -> StructuredOutput | None:
    return parse_structured_output(SimpleNamespace(**{**dict.fromkeys(FIELDS), **fields}))


def named(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, **changes}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": named()}, {"json_schema": SCHEMA}),
        ({"response_format": named(strict=True, description="d")}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
            {"json_schema": json.dumps(SCHEMA)},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"], "json_object": False}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"lark": 'start: "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"response_format": {"type": "json_object", "schema": {}}}, {"json_object": True}),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, {"regex": "a+"}),
        ({"guided_grammar": 'start: "a"'}, {"lark": 'start: "a"'}),
    ],
    ids=range(17),
)
def test_structured_output_fields_are_parsed(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert ask(**fields) == (None if expected is None else StructuredOutput(**expected))


@pytest.mark.parametrize(
    ("fields", "expected_message"),
    [
        ({"response_format": "json"}, "response_format must be an object"),
        ({"response_format": {}}, "response_format.type must be"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, 'requires the type "json_schema"'),
        ({"response_format": {"type": "json_schema"}}, "json_schema must be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "json_schema.name must be"),
        ({"response_format": named(name="a b")}, "json_schema.name must be"),
        ({"response_format": named(schema=None)}, "schema must be a JSON schema"),
        ({"response_format": named(schema=deep(65))}, "nested deeper than 64"),
        ({"structured_outputs": []}, "structured_outputs must be an object"),
        ({"structured_outputs": {}}, "exactly one of json, regex, choice, grammar, json_object; it has 0"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "it has 2"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, 'requires the type "json_object"'),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json must be a JSON schema"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex must be a string"),
        ({"structured_outputs": {"choice": "abc"}}, "structured_outputs.choice must be a list"),
        ({"structured_outputs": {"json_object": 1}}, "json_object must be true or false"),
        ({"guided_json": [1]}, "guided_json must be a JSON schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice cannot be combined"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format and guided_json"),
    ],
    ids=range(19),
)
def test_invalid_structured_output_is_refused(fields: dict[str, Any], expected_message: str) -> None:
    with pytest.raises(InvalidRequest, match=expected_message) as refusal:
        ask(**fields)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
        ({"response_format": {"type": "text", "x": None}}, "response_format.x"),
        ({"response_format": named(schemas={})}, "response_format.json_schema.schemas"),
        ({"structured_outputs": {"backend": "outlines"}}, "structured_outputs.backend"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"response_format": named(**{"x" * 9999: 1})}, f"response_format.json_schema.{'x' * 64}..."),
    ],
)
def test_unknown_field_is_refused_with_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ask(**fields)
    assert (refusal.value.param, refusal.value.code) == (path, "unknown_parameter")
    assert path in refusal.value.message and len(refusal.value.message) < 400
