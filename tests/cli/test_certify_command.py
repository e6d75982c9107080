"""`holdfast certify`: the table, the JSON, a fresh one, a refusal."""

import json
from dataclasses import replace

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_the_table_names_every_kind_of_operation(holdfast, model):
    result = holdfast("certify", model)
    assert result.exit_code == 0, result.stderr
    for word in (
        "qkv",
        "down",
        "head",
        "attention",
        "rms_norm",
        "logsumexp",
        "comparisons",
        "certified row totals",
    ):
        assert word in result.stdout


def test_a_fresh_certificate_says_what_the_kept_one_says(holdfast, model):
    kept = json.loads(holdfast("certify", model, "--json").stdout)
    fresh = json.loads(holdfast("certify", model, "--json", "--fresh").stdout)
    assert "now" in holdfast("certify", model, "--fresh").stdout
    assert fresh["sizes"] == kept["sizes"]
    assert fresh["key"] == kept["key"]


def test_a_refusal_is_shown_and_exits_with_1(holdfast, model, monkeypatch):
    from holdfast.engine import certifying

    certify = certifying.certify
    monkeypatch.setattr(certifying, "load_certificate", lambda key: None)
    monkeypatch.setattr(certifying, "save_certificate", lambda made: None)
    monkeypatch.setattr(
        certifying,
        "certify",
        lambda *given: replace(certify(*given), sizes=(), refusal="the reference does not repeat"),
    )
    result = holdfast("certify", model)
    assert result.exit_code == 1
    assert "the reference does not repeat" in result.stdout
    refused = holdfast("generate", "the dog", "-m", model, "-d")
    assert refused.exit_code == 2
    assert "the reference does not repeat" in refused.stderr
