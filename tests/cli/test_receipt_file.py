"""`holdfast generate --receipt`: what is written, and that it replays."""

import json
import os

import pytest

from holdfast.cli.results import write_receipts
from holdfast.core.results import Choice, Result, Stats
from holdfast.errors import InvalidRequest

QUICK = ("--max-tokens", "6", "--ignore-eos")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "receipt.json"


def test_receipt_file_can_be_replayed(holdfast, model, file):
    result = holdfast("generate", "the dog", "-m", model, *QUICK, "-d", "--n", "2", "--receipt", file)
    assert result.stdout.startswith("[1]\n")
    again = holdfast("replay", file)
    assert "12 tokens in 2 choices" in again.stdout


def test_receipts_of_several_prompts_are_one_a_line(holdfast, model, file):
    holdfast("generate", "-p", "dog", "-p", "fox", "-m", model, *QUICK, "-d", "--raw", "--receipt", file)
    lines = file.read_text().splitlines()
    answers = [
        json.loads(
            holdfast(
                "generate", prompt, "-m", model, *QUICK, "-d", "--raw", "--json", "--receipt", "-"
            ).stdout
        )["receipt"]
        for prompt in ("dog", "fox")
    ]
    assert [json.loads(line)["prompt"]["token_ids"] for line in lines] == [
        answer["prompt"]["token_ids"] for answer in answers
    ]
    for line in lines:
        holdfast("replay", "-", stdin=line)


def test_receipt_without_prompt_has_its_digest(holdfast, model, file):
    asked = ("generate", "the dog", "-m", model, *QUICK, "-d", "--no-prompt-in-receipt", "--json")
    assert "receipt" not in json.loads(holdfast(*asked, "--receipt", file).stdout)
    assert json.loads(file.read_text())["prompt"]["token_ids"] is None
    holdfast("replay", file, code=2)
    holdfast("replay", file, "--prompt", "the dog")


def test_receipt_in_json_is_asked_for_with_a_dash(holdfast, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ("generate", "the dog", "-m", model, *QUICK, "-d")
    assert "receipt" not in json.loads(holdfast(*asked, "--json").stdout)
    answer = holdfast(*asked, "--json", "--receipt", "-")
    holdfast("replay", "-", stdin=answer.stdout)
    assert not list(tmp_path.iterdir())
    refused = holdfast(*asked, "--receipt", "-", code=2)
    assert "give --json" in refused.stderr


def test_failed_answer_has_a_null_receipt(file):
    def result(receipt):
        return Result((1,), (Choice("", (), "error"),), 0, "none", Stats(), receipt)

    write_receipts(file, [result({"a": 1}), result(None), result({"a": 3})])
    assert file.read_text() == '{"a": 1}\nnull\n{"a": 3}\n'


@pytest.mark.parametrize(
    ("path", "said"), [(".", "it is a folder"), ("none/receipt.json", "there is no folder")]
)
def test_unwritable_receipt_is_refused_before_the_model_is_loaded(holdfast, tmp_path, path, said):
    result = holdfast("generate", "the dog", "-m", "/no/such/model", "--receipt", tmp_path / path, code=2)
    assert "cannot be written" in result.stderr
    assert said in result.stderr


def test_write_error_is_one_line(monkeypatch, file):
    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(InvalidRequest, match="No space left"):
        write_receipts(file, [])
