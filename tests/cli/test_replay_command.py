"""`holdfast replay`: output and exit codes."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import LLM, SamplingParams
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.receipt import digest_logprobs, redact
from support import receipts
from support.tiny import tiny_model


@pytest.fixture(scope="session")
def made(model):
    """A receipt of eight sampled tokens."""
    params = SamplingParams(max_tokens=8, temperature=0.8, deterministic=True, ignore_eos=True)
    return receipts.ask(LLM(model), "the quick fox", params)


@pytest.fixture
def write(tmp_path):
    def put(receipt) -> Path:
        file = tmp_path / "receipt.json"
        file.write_text(json.dumps(receipt))
        return file

    return put


def test_same_result_exits_with_0(holdfast, made, write):
    result = holdfast("replay", write(made))
    assert result.stdout == (
        "The receipt: seal intact, not signed.\n"
        "The same, bit for bit: 8 tokens and the bits of 8 logprobs (certified).\n"
    )
    assert result.stderr == ""


def test_receipt_from_stdin_inside_an_answer(holdfast, made, model):
    answer = holdfast("generate", "the dog", "-m", model, "-d", "-n", "6", "--json", "--receipt", "-").stdout
    result = holdfast("replay", "-", "--line", "2", stdin=f"{json.dumps(made)}\n{answer}")
    assert "6 tokens" in result.stdout


def test_replay_result_as_json(holdfast, made, write):
    outcome = json.loads(holdfast("replay", write(made), "--json").stdout)
    assert outcome == {
        "same": True,
        "compared": True,
        "promised": True,
        "mode": "certified",
        "fingerprint_differences": [],
        "difference": None,
        "seal": "intact",
        "signature": "absent",
    }


def tampered(made, position):
    receipt = copy.deepcopy(made)
    choice = receipt["choices"][0]
    choice["token_ids"][position] = 300 if choice["token_ids"][position] != 300 else 301
    choice["logprobs"]["digest"] = digest_logprobs(choice["token_ids"], choice["logprobs"]["bits"])
    return receipts.resealed(receipt)


def test_broken_seal_is_refused_before_anything_runs(holdfast, made, write):
    for field, value in (("counts", {**made["counts"], "windows": 99}), ("certificate", None)):
        result = holdfast("replay", write({**made, field: value}), "--force", code=2)
        assert "its seal is broken: something was changed after it was made" in result.stderr
        assert result.stdout == ""


def test_replay_says_what_it_checked(holdfast, model, made, write, tmp_path):
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    public.write_text(holdfast("receipt", "keygen", key).stdout)
    params = SamplingParams(max_tokens=4, deterministic=True, ignore_eos=True)
    signed = receipts.ask(LLM(model, receipt_key=str(key)), "the dog", params)
    result = holdfast("replay", write(signed), "--public-key", public)
    assert result.stdout.startswith("The receipt: seal intact, signature valid.\nThe same, bit for bit: ")
    outcome = json.loads(holdfast("replay", write(signed), "--public-key", public, "--json").stdout)
    assert (outcome["same"], outcome["seal"], outcome["signature"]) == (True, "intact", "valid")
    unsigned = holdfast("replay", write(made), "--public-key", public, code=2)
    assert unsigned.stdout == ""
    assert "it is not signed" in unsigned.stderr


def test_different_answer_exits_with_1_and_names_the_position(holdfast, made, write):
    result = holdfast("replay", write(tampered(made, 5)), code=1)
    assert result.stdout.splitlines()[1].startswith("Different: choice 0, position 5: expected token 300 ")
    outcome = json.loads(holdfast("replay", write(tampered(made, 5)), "--json", code=1).stdout)
    assert (outcome["same"], outcome["difference"]["position"]) == (False, 5)


def test_fingerprint_differences_are_listed_and_nothing_runs(holdfast, made, write, tmp_path):
    other = tiny_model(tmp_path / "other", seed=8)
    result = holdfast("replay", write(made), "--model", other, code=1)
    lines = result.stdout.splitlines()[1:]
    assert lines[0] == "The fingerprints differ, so the bits may differ:"
    assert lines[1].startswith("  weights: ")
    assert lines[1].endswith("... in the receipt")
    assert lines[2].startswith("Nothing was run.")
    assert len(lines) == 3


def test_force_compares_despite_another_fingerprint(holdfast, made, write, tmp_path):
    other = tiny_model(tmp_path / "other", seed=8)
    result = holdfast("replay", write(made), "--model", other, "--force", code=1)
    assert "Different: choice 0, position " in result.stdout
    stranger = copy.deepcopy(made)
    stranger["fingerprint"]["parts"]["recipe"]["version"] = "1"
    stranger = receipts.resealed(
        stranger, fingerprint=Fingerprint.of(stranger["fingerprint"]["parts"]).as_dict()
    )
    result = holdfast("replay", write(stranger), "--force")
    assert "  recipe.version: " in result.stdout
    assert "The same, bit for bit" in result.stdout
    outcome = json.loads(holdfast("replay", write(stranger), "--json", code=1).stdout)
    assert (outcome["same"], outcome["compared"], outcome["mode"]) == (False, False, None)
    assert outcome["fingerprint_differences"][0].startswith("recipe.version: ")


def test_ordinary_request_is_noted(holdfast, model, write):
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    result = holdfast("replay", write(receipts.ask(LLM(model), "the dog", params)))
    assert "no guarantee applies" in result.stderr


@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
def test_prompt_can_be_given_if_the_receipt_has_none(holdfast, model, write, chat):
    llm = LLM(model)
    prompt = llm.chat_tokens([{"role": "user", "content": "the dog"}]) if chat else "the dog"
    receipt = receipts.ask(llm, prompt, SamplingParams(max_tokens=4, deterministic=True))
    salt = receipt["prompt"]["salt"]
    holdfast("replay", write(redact(receipt)), "--prompt", "the dog", "--prompt-salt", salt)


def test_wrong_prompt_is_refused(holdfast, made, write):
    file = write(redact(made, keep_salt=True))
    ids = ",".join(map(str, made["prompt"]["token_ids"]))
    holdfast("replay", file, "--prompt-ids", ids)
    for arguments, said in (
        ((), "does not contain its prompt"),
        (("--prompt", "the cat"), "not the receipt's"),
        (("--prompt-ids", "one"), "must be token ids separated by commas"),
        (("--prompt-ids", "1", "--prompt", "a"), "give the prompt once"),
    ):
        result = holdfast("replay", file, *arguments, code=2)
        assert said in result.stderr


def test_receipt_is_replayed_in_another_process_with_more_threads(made, write):
    command = [sys.executable, "-m", "holdfast", "replay", write(made), "--num-threads", "3", "--load", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The same, bit for bit" in done.stdout
