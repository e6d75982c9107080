"""Reading calls from JSON: what is a call, and that arguments keep their exact text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.server.tools.auto_parser import WrittenCall, may_begin_call, read_calls

NAMES = frozenset({"f", "get_weather"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "arguments": {}}', [("f", "{}")]),
        ('{"name":"f","parameters":{"a" : 1e5}}', [("f", '{"a" : 1e5}')]),
        ('{ "arguments" : { "x":[1,{}] } ,\n"name" : "f" }', [("f", '{ "x":[1,{}] }')]),
        (
            '{"type": "function", "name": "f", "parameters": {"a": "\\u00e9\\ud800"}}',
            [("f", '{"a": "\\u00e9\\ud800"}')],
        ),
        ('{"n\\u0061me": "\\u0066", "arguments": {}}', [("f", "{}")]),
        (
            '[{"name": "f", "arguments": {}} , {"name":"get_weather","arguments":{"a":"]"}}]',
            [("f", "{}"), ("get_weather", '{"a":"]"}')],
        ),
        ('[ {"name": "f", "arguments": {}} ]', [("f", "{}")]),
        ('{"name": "f", "arguments": {"a": ' + "9" * 9999 + "}}", [("f", '{"a": ' + "9" * 9999 + "}")]),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', [("f", '{"a": 1, "a": 2}')]),
    ],
)
def test_calls_are_read(text: str, calls: list[tuple[str, str]]) -> None:
    assert read_calls(text, NAMES) == tuple(WrittenCall(*call) for call in calls)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "[1]",
        '{"name": "f"}',
        '{"name": "other", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "name": "f", "arguments": {}}',
        '{"name": "f", "arguments": {}, "parameters": {}}',
        '{"function": {"name": "f", "arguments": {}}}',
        '[{"name": "f", "arguments": {}}, {"name": "other", "arguments": {}}]',
        '[{"name": "f", "arguments": {}}, 1]',
    ],
)
def test_other_json_is_no_call(text: str) -> None:
    assert json.loads(text) is not None
    assert read_calls(text, NAMES) is None


OBJECTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(st.none() | st.integers() | st.text(max_size=4), st.lists, max_leaves=5),
    max_size=4,
)


@settings(deadline=None)
@given(OBJECTS, st.sampled_from([None, 0, 2]), st.booleans(), st.booleans())
def test_arguments_keep_their_exact_text(value: Any, indent: Any, ascii_only: bool, first: bool) -> None:
    arguments = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    members = ['"name": "f"', f'"arguments":{arguments}']
    text = "{" + ",\n".join(members[::-1] if first else members) + "}"
    assert read_calls(text, NAMES) == (WrittenCall("f", arguments),)


@pytest.mark.parametrize(
    "head", ["{", "[", '{ "na', '[ {\n"name": "anything', '{"type"', '{"parameters', '{"id": 1, "x']
)
def test_possible_beginning_of_a_call(head: str) -> None:
    assert may_begin_call(head)


@pytest.mark.parametrize("head", ["{}", "[]", "[1", '{"answer', '{"names"', '[[{"name"', "x"])
def test_impossible_beginning_of_a_call(head: str) -> None:
    assert not may_begin_call(head)
