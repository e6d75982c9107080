"""The grammar library's version and masks: what receipts of structured answers name."""

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.structured import behaviour
from holdfast.structured.behaviour import digest_masks, grammar_library

pytest.importorskip("llguidance")


def test_masks_have_one_digest_and_every_grammar_compiles() -> None:
    assert digest_masks() == digest_masks() == grammar_library().masks
    trie = behaviour.open_trie(behaviour._TEXTS, [behaviour._EOS_ID])
    for probe in behaviour._PROBES:
        masks = list(behaviour._masks(trie, probe))
        assert all(masks), probe
        assert len(set(masks)) > 4, f"{probe} shows little"


@pytest.mark.parametrize(
    ("kind", "at"),
    [("json_schema", "maxLength"), ("regex", "d{2,4}"), ("choice", "reddish"), ("lark", "[0-9]+")],
)
def test_one_changed_grammar_changes_the_digest(kind: str, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the library read one construct of a grammar differently."""
    others = {"maxLength": "x-unknown", "d{2,4}": "d{2,5}", "reddish": "redfish", "[0-9]+": "[0-8]+"}
    write = behaviour.write_grammar

    def write_other(structured: StructuredOutput) -> str:
        grammar = write(structured)
        return grammar.replace(at, others[at]) if structured.kind == kind else grammar

    before = digest_masks()
    monkeypatch.setattr(behaviour, "write_grammar", write_other)
    assert digest_masks() != before
