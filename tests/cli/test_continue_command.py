"""`holdfast continue`: output and exit codes."""

import copy
import json
from dataclasses import replace

import pytest

from holdfast import LLM, SamplingParams
from holdfast.cli.results import as_json
from holdfast.receipts.receipt import digest_logprobs
from support.receipts import resealed


@pytest.fixture(scope="module")
def answers(model):
    """The same answer with 8 and with 20 tokens."""
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=4, deterministic=True, ignore_eos=True)
    lengths = [replace(params, max_tokens=8), params]
    results = LLM(model).generate(["the quick fox"] * 2, lengths, use_tqdm=False)
    return [json.loads(as_json(result, with_receipt=True)) for result in results]


def test_whole_answer_is_printed(holdfast, answers, tmp_path):
    begun, whole = answers
    file, written = tmp_path / "begun.json", tmp_path / "whole.json"
    file.write_text(json.dumps(begun))
    result = holdfast("continue", file, "--max-tokens", "20", "--receipt", written)
    assert result.stdout == whole["text"] + "\n"
    assert "seal intact" in result.stderr and "20 tokens" in result.stderr
    assert json.loads(written.read_text())["choices"] == whole["receipt"]["choices"]
    again = holdfast("continue", "-", "-n", "12", "--json", stdin=json.dumps(begun["receipt"]))
    assert json.loads(again.stdout)["token_ids"] == whole["token_ids"][:12]


def test_contradiction_exits_with_1(holdfast, answers):
    forged = copy.deepcopy(answers[0]["receipt"])
    (choice,) = forged["choices"]
    bits = choice["logprobs"]["bits"]
    bits[3] = f"{int(bits[3], 16) ^ 1:08x}"
    choice["logprobs"]["digest"] = digest_logprobs(choice["token_ids"], bits)
    result = holdfast("continue", "-", "-n", "20", stdin=json.dumps(resealed(forged)), code=1)
    assert result.stdout == ""
    assert "guarantee" in result.stderr or "sent" in result.stderr


def test_nothing_to_continue_exits_with_2(holdfast, answers):
    for arguments, message in ((("-n", "8"), "ask for more tokens"), ((), "--max-tokens")):
        result = holdfast("continue", "-", *arguments, stdin=json.dumps(answers[0]), code=2)
        assert message in result.stderr
