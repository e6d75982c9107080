"""`check_grammar` refuses what every model would refuse, and nothing that a model could follow."""

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.structured.spec import check_grammar


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"regex": "a("}, "regular expression cannot be used: unclosed group"),
        ({"regex": "a\\"}, "ends in a lone backslash"),
        ({"lark": "start: missing"}, 'unknown name: "missing"'),
        ({"lark": "start: <|end|>"}, "it names tokens"),
        ({"json_schema": {"type": "strin"}}, "JSON schema cannot be used: Invalid type"),
        ({"json_schema": False}, "allows no answer"),
    ],
)
def test_wrong_grammar_is_refused(wrong, reason):
    with pytest.raises(InvalidRequest, match=reason):
        check_grammar(StructuredOutput(**wrong))


@pytest.mark.parametrize(
    "right",
    [
        {"regex": "[0-9]{3}-é+"},
        {"choice": ["yes", "no", "ü"]},
        {"json_object": True},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"lark": 'start: "a" start "b" | "c"'},
    ],
)
def test_right_grammar_is_accepted(right):
    check_grammar(StructuredOutput(**right))
