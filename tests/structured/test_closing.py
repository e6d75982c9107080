"""Which objects of a JSON schema are closed, and which answers the grammar then allows."""

import json
from typing import Any

import pytest

from holdfast.core.sampling_params import SamplingParams, params_from_json, params_to_json
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.structured.closing import close_objects
from holdfast.structured.spec import write_grammar
from support.grammar_walks import byte_harness, needs_llguidance

CLOSED = {"type": "object", "properties": {"id": {"type": "integer"}}}
NULL: dict[str, Any] = {"type": "null"}
X = {"properties": {"x": NULL}}
DEFS = {"$defs": {"C": CLOSED, "T": {"properties": {"n": NULL, "next": {"$ref": "#/$defs/T"}}}}}
USED_TWICE = {
    **DEFS,
    "properties": {"alone": {"$ref": "#/$defs/C"}, "mixed": {"allOf": [{"$ref": "#/$defs/C"}, X]}},
}
TREE = {"properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["n"]}
ONE_OF_TWO = {"properties": {"a": NULL, "b": NULL}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}


def nest(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"in": schema}, "required": ["in"]}


@needs_llguidance
@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (CLOSED, ['{"id": 1}', '{"id":1}', "{}"], ['{"z": 1}', '{"id": 1, "z": 1}']),
        ({"type": "array", "items": CLOSED}, ['[{"id": 1}, {}]'], ['[{"z": 1}]']),
        ({"type": "array", "prefixItems": [CLOSED], "items": False}, ['[{"id": 1}]'], ['[{"z": 1}]']),
        ({"type": "object", "additionalProperties": CLOSED}, ['{"k": {"id": 1}}'], ['{"k": {"z": 1}}']),
        ({"anyOf": [CLOSED, NULL]}, ["null", '{"id": 1}'], ['{"z": 1}']),
        ({**CLOSED, "type": ["object", "null"]}, ["null", '{"id": 1}'], ['{"z": 1}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"z": 1}']),
        # open because the schema says so
        ({"type": "object"}, ['{"z": 1}'], []),
        ({**CLOSED, "additionalProperties": True}, ['{"id": 1, "z": 1}'], []),
        ({**CLOSED, "additionalProperties": NULL}, ['{"id": 1, "z": null}'], ['{"z": 1}']),
        ({**CLOSED, "patternProperties": {"^x": NULL}}, ['{"xy": null}'], []),
        # references and recursion
        ({**DEFS, "$ref": "#/$defs/C"}, ['{"id": 1}'], ['{"z": 1}']),
        ({"definitions": {"C": CLOSED}, **nest({"$ref": "#/definitions/C"})}, ['{"in": {}}'], ['{"in": {"z": 1}}']),
        ({**DEFS, **nest({"$ref": "#/$defs/T", "description": "d"})},
         ['{"in": {"next": {"n": null}}}'], ['{"in": {"next": {"z": 1}}}']),
        (TREE, ['{"n": 1, "next": {"n": 2}}'], ['{"n": 1, "next": {"n": 2, "z": 1}}']),
        ({**DEFS, **nest({"allOf": [{"$ref": "#/$defs/C"}], "default": {}})}, ['{"in": {"id": 1}}'], ['{"in": {"z": 1}}']),
        # combined schemas
        ({"allOf": [CLOSED, X]}, ['{"id": 1, "x": null}', '{"id": 1, "z": 1}'], ['{"x": 1}']),
        ({"allOf": [CLOSED]}, ['{"z": 1}'], ['{"id": "s"}']),
        ({**CLOSED, "allOf": [X]}, ['{"id": 1, "x": null}'], ['{"z": 1}', '{"x": 1}']),
        ({**DEFS, "$ref": "#/$defs/C", **X}, ['{"id": 1, "x": null}'], ['{"z": 1}']),
        (USED_TWICE, ['{"alone": {"id": 1}}', '{"mixed": {"id": 1, "x": null}}'],
         ['{"alone": {"z": 1}}', '{"alone": {"x": 1}}']),
        (ONE_OF_TWO, ['{"a": null}', '{"b": null}'], ["{}", '{"b": null, "z": 1}']),
        ({"allOf": [nest(CLOSED), nest(X)]}, ['{"in": {"id": 1, "x": null}}'], ['{"in": {"x": 1}}']),
        # a required property counts as listed
        ({**CLOSED, "required": ["y"]}, ['{"id": 1, "y": [2]}'], ['{"id": 1}', '{"y": 1, "z": 1}']),
    ],
)  # fmt: skip
def test_grammar_of_a_closed_schema(schema: Any, allowed: list[str], refused: list[str]) -> None:
    harness = byte_harness()
    for text in (*allowed, *refused):
        ids = [*harness.encode(text), min(harness.eos_ids)]
        grammar = harness.compile(json_schema=schema)
        assert (grammar.count_valid(ids) == len(ids)) == (text in allowed), text


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"const": {"properties": {"a": 1}}},
        {"enum": [{"properties": {}}], "properties": {"a": {}}},
        {"properties": {"a": {"default": {"properties": {}}}}, "additionalProperties": False},
        {"properties": ["a"]},
        {**CLOSED, "minProperties": 2},
        {**CLOSED, "unevaluatedProperties": False},
        {**CLOSED, "propertyNames": {"pattern": "^x"}},
        {**CLOSED, "$ref": "#/$defs/none"},
        {**CLOSED, "$dynamicRef": "#meta"},
        {**CLOSED, "anyOf": [{"additionalProperties": True}]},
    ],
)
def test_schema_that_must_not_be_closed_is_unchanged(schema: Any) -> None:
    before = json.dumps(schema)
    assert close_objects(schema) == schema
    assert json.dumps(schema) == before


def test_closing_twice_changes_nothing() -> None:
    for schema in (USED_TWICE, TREE, ONE_OF_TWO, nest(nest(CLOSED))):
        closed = close_objects(schema)
        assert closed != schema
        assert json.dumps(close_objects(closed)) == json.dumps(closed)


def test_entangled_schema_is_refused() -> None:
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} | X for n in range(2000)}
    schema = {
        "$defs": {**chain, "d2000": X},
        "properties": {f"p{n}": {**X, "$ref": "#/$defs/d0"} for n in range(2000)},
    }
    with pytest.raises(InvalidRequest, match="combines too many schemas"):
        close_objects(schema)


def test_receipts_keep_the_rules_of_their_time() -> None:
    """The settings of a receipt without rules mean open objects and loose white space, as they did."""
    text = json.dumps(CLOSED)
    old = params_from_json({"structured": {"json_schema": text}}).structured
    new = SamplingParams(structured=StructuredOutput(json_schema=CLOSED))
    assert old is not None and old.json_rules == 1
    assert old != new.structured
    (grammar, _) = json.loads(write_grammar(old))["grammars"]
    options = {"whitespace_pattern": r"[ ]{1,2}|\n[ \t]{0,32}", "lenient": False, "coerce_one_of": False}
    assert grammar == {"json_schema": {**CLOSED, "x-guidance": options}}
    written = params_to_json(new)["structured"]
    assert written == {"json_schema": text, "json_rules": 2}  # the schema as the client sent it
    assert params_from_json(params_to_json(new)) == new
    again = params_to_json(SamplingParams(structured=old))
    assert again["structured"] == {"json_schema": text}  # as it was read
    assert params_from_json(again).structured == old


@pytest.mark.parametrize("rules", [0, 3, True, "2", None, 2.0, [2]])
def test_other_rules_are_refused(rules: Any) -> None:
    with pytest.raises(InvalidRequest, match="json_rules"):
        StructuredOutput(json_object=True, json_rules=rules)
