"""`holdfast replay --against`: two receipts compared without a model."""

import json

import pytest

from holdfast import SamplingParams
from holdfast.cli.options import engine as o
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.receipt import redact
from support.receipts import PARTS, prompt_of, receipt_of, resealed

PARAMS = SamplingParams(deterministic=True, max_tokens=2)


@pytest.fixture
def compare(holdfast, tmp_path, monkeypatch):
    """`compare(one, other)` writes both receipts and compares them. A model must not be opened."""

    def refuse(*given, **options):
        raise AssertionError("a model was opened")

    monkeypatch.setattr(o, "open_model", refuse)
    monkeypatch.setattr(o, "open_llm", refuse)

    def call(one, other, *options, code=0):
        files = [tmp_path / "one.json", tmp_path / "other.json"]
        for file, content in zip(files, (one, other), strict=True):
            file.write_text(json.dumps(content))
        return holdfast("replay", files[0], "--against", files[1], *options, code=code)

    return call


def other_threads(receipt):
    parts = {**PARTS.parts, "settings": {**PARTS.parts["settings"], "threads": 4}}
    engine = {**receipt["engine"], "num_threads": 4}
    return resealed(receipt, fingerprint=Fingerprint.of(parts).as_dict(), engine=engine)


def test_equal_receipts_exit_with_0(compare):
    result = compare(receipt_of(PARAMS), receipt_of(PARAMS))
    assert "The answers are the same, bit for bit: 2 tokens.\n" in result.stdout
    assert result.stdout.count("seal intact, not signed") == 2


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (receipt_of(PARAMS, (4, 6)), "Different: choice 0, position 1: expected token 5, got 6."),
        (receipt_of(SamplingParams(deterministic=True, max_tokens=3)), "max_tokens: 2, 3"),
        (resealed(receipt_of(PARAMS), prompt=prompt_of([1, 7, 3])), "which differ from token 1 on"),
        (other_threads(receipt_of(PARAMS)), "settings.threads: 2 in the first receipt, 4 in the second"),
    ],
    ids=["token", "setting", "prompt", "fingerprint"],
)
def test_first_difference_is_named(compare, other, expected):
    result = compare(receipt_of(PARAMS), other, code=1)
    assert expected in result.stdout
    outcome = json.loads(compare(receipt_of(PARAMS), other, "--json", code=1).stdout)
    assert outcome["same"] is False
    assert outcome["difference"] or outcome["request_differences"] or outcome["fingerprint_differences"]


def test_json_of_equal_receipts(compare):
    outcome = json.loads(compare(receipt_of(PARAMS), receipt_of(PARAMS), "--json").stdout)
    assert outcome == {
        "same": True,
        "compared": True,
        "promised": True,
        "modes": ["verified", "verified"],
        "fingerprint_differences": [],
        "request_differences": [],
        "difference": None,
        "seals": ["intact", "intact"],
        "signatures": ["absent", "absent"],
    }


def test_redacted_receipt_is_compared_without_its_prompt(compare):
    result = compare(receipt_of(PARAMS), redact(receipt_of(PARAMS)))
    assert "the prompts were not compared" in result.stderr


def test_what_cannot_be_compared_exits_with_2(compare, holdfast):
    whole = receipt_of(PARAMS)
    compare(whole, {"format": "holdfast-receipt/2"}, code=2)
    compare(whole, {**whole, "seal": "0" * 64}, code=2)
    compare(whole, whole, "--load", "2", code=2)
    assert "--dtype" in compare(whole, whole, "--dtype", "fp32", code=2).stderr
    assert "stdin can be read once" in holdfast("replay", "-", "--against", "-", stdin="{}", code=2).stderr
