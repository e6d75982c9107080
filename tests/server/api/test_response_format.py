"""Parsing of structured output fields: every accepted variant, and the message for every invalid
one.
"""

import json
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.api.sampling import parse_structured_output
from holdfast.server.api.schema.requests import CompletionRequest
from holdfast.server.errors import ApiError
from holdfast.server.http.body import parse_body

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def ask(**fields: Any) -> StructuredOutput | None:
    body = json.dumps({"prompt": "a", **fields}).encode()
    return parse_structured_output(parse_body(body, CompletionRequest))


def named(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, **changes}}


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
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, {"regex": "a+"}),
        ({"guided_grammar": 'start: "a"'}, {"lark": 'start: "a"'}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"json_schema": SCHEMA},
        ),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"regex": "a+"}, {"regex": "a+"}),
    ],
    ids=range(19),
)
def test_structured_output_fields_are_parsed(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert ask(**fields) == (None if expected is None else StructuredOutput(**expected))


@pytest.mark.parametrize(
    ("fields", "expected_message"),
    [
        ({"response_format": {}}, "response_format.*its type must be"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, 'requires the type "json_schema"'),
        ({"response_format": {"type": "json_schema"}}, "Missing required parameter.*json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "Missing.*json_schema.schema"),
        ({"response_format": named(name="a b")}, "json_schema.name.*should match pattern"),
        ({"response_format": named(schema=None)}, "json_schema.schema.*expected an object"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, 'requires the type "json_object"'),
        ({"structured_outputs": []}, "structured_outputs.*expected an object"),
        ({"structured_outputs": {}}, "exactly one of json, regex, choice, grammar, json_object; it has 0"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "it has 2"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json.*expected one of a string"),
        ({"structured_outputs": {"regex": ""}}, "regex must be a non-empty string"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice cannot be combined"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format and guided_json"),
        ({"regex": "a", "json_schema": {}}, "json_schema and regex cannot be combined"),
    ],
    ids=range(15),
)
def test_invalid_structured_output_is_refused(fields: dict[str, Any], expected_message: str) -> None:
    with pytest.raises((ApiError, InvalidRequest), match=expected_message) as refusal:
        ask(**fields)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
        ({"response_format": named(schemas={})}, "response_format.json_schema.schemas"),
        ({"structured_outputs": {"backend": "outlines"}}, "structured_outputs.backend"),
    ],
)
def test_unknown_field_is_refused_with_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ask(**fields)
    assert (refusal.value.param, refusal.value.code) == (path, "unknown_parameter")
