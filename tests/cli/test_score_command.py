"""`holdfast score`: the bits of generate, pairs from everywhere, and what a wrong one says."""

import json
import math

import pytest

from holdfast.cli.results import bits
from holdfast.engine.llm.llm import LLM


def ids(values):
    return ",".join(map(str, values))


@pytest.fixture
def score(holdfast, model):
    """`score("the dog", " sleeps")` gives the JSON of each pair."""

    def call(*arguments, stdin=None):
        result = holdfast("score", *arguments, "-m", model, "--json", stdin=stdin)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return call


@pytest.mark.parametrize("template", ["--raw", "--chat"])
def test_score_bits_are_those_of_generate(holdfast, model, score, template):
    asked = ("the dog", "-m", model, "-n", "8", "--ignore-eos", "-d", "--logprobs", "0", "--json", template)
    answer = json.loads(holdfast("generate", *asked).stdout)
    chat = ("--chat",) if template == "--chat" else ()
    for mode in ("auto", "verify"):
        (scored,) = score(
            "the dog", "--completion-ids", ids(answer["token_ids"]), *chat, "--determinism", mode
        )
        assert [one["token_id"] for one in scored["tokens"]] == answer["token_ids"]
        assert [one["bits"] for one in scored["tokens"]] == [one["bits"] for one in answer["logprobs"]]
        assert scored["prompt_tokens"] == answer["prompt_tokens"]
        assert scored["fingerprint"] == answer["fingerprint"]
        assert scored["deterministic"] is True


def test_texts_and_ids_give_the_same_score(score, model):
    tokenizer = LLM(model).engine.tokenizer
    prompt, completion = tokenizer.encode("the dog"), tokenizer.encode(" sleeps")
    (texts,) = score("the dog", " sleeps")
    assert "".join(one["text"] for one in texts["tokens"]) == " sleeps"
    assert score("--prompt-ids", ids(prompt), " sleeps") == [texts]
    assert score("the dog", "--completion-ids", ids(completion)) == [texts]
    assert score("--prompt-ids", ids(prompt), "--completion-ids", ids(completion)) == [texts]


def test_output_is_the_sum_and_then_the_tokens(holdfast, model, score):
    (scored,) = score("the dog", " sleeps")
    total = math.fsum(one["logprob"] for one in scored["tokens"])
    assert scored["sum"] == total
    assert holdfast("score", "the dog", " sleeps", "-m", model).stdout == f"{total!r}\n"
    first, *others = holdfast("score", "the dog", " sleeps", "-m", model, "--tokens").stdout.splitlines()
    assert first == repr(total)
    for line, one in zip(others, scored["tokens"], strict=True):
        assert line.split()[0] == str(one["token_id"])
        assert one["bits"] == bits(one["logprob"])
        assert one["bits"] in line
        assert repr(one["text"]) in line


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_pairs_of_a_file_are_scored_in_order(score, monkeypatch, tmp_path, source):
    pairs = [
        {"prompt": "the dog", "completion": " sleeps", "note": "not ours"},
        {"prompt": [5, 6, 7], "completion": "fox"},
        {"prompt": "the fox", "completion": [8, 9]},
    ]
    lines = "\n".join(json.dumps(pair) for pair in pairs[:2]) + "\n\n" + json.dumps(pairs[2]) + "\n"
    alone = [*score("the dog", " sleeps"), *score("--prompt-ids", "5,6,7", "fox")]
    alone += score("the fox", "--completion-ids", "8,9")
    batches = []
    score_batch = LLM.score_batch

    def watch(self, pairs, **how):
        batches.append(len(pairs))
        return score_batch(self, pairs, **how)

    monkeypatch.setattr(LLM, "score_batch", watch)
    file = tmp_path / "pairs.jsonl"
    file.write_text(lines)
    got = score("--file", "-", stdin=lines) if source == "stdin" else score("--file", file)
    assert got == alone
    assert score("the dog", " sleeps", "--file", file)[0] == alone[0]
    assert batches == [3, 4]


def test_ordinary_scores_with_determinism_off(score, holdfast, model):
    (scored,) = score("the dog", " sleeps", "--ordinary", "--determinism", "off")
    assert scored["deterministic"] is False
    refused = holdfast("score", "the dog", " sleeps", "--determinism", "off", "-m", model, code=2)
    assert "determinism off" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to score"),
        (("the dog",), "a pair is one prompt and one completion"),
        (("a", "b", "--prompt-ids", "1"), "a pair is one prompt and one completion"),
        (("--prompt-ids", "1;2", "x"), "--prompt-ids must be token ids separated by commas"),
        (("x", "--completion-ids", "100000"), "token id 100000 is not in the vocabulary"),
        (("x", ""), "at least one token each"),
        (("--file", "/no/such/file"), "the file of pairs /no/such/file cannot be read"),
    ],
)
def test_wrong_pair_is_one_line_and_exit_code_2(holdfast, model, arguments, said):
    result = holdfast("score", *arguments, "-m", model, code=2)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is no valid JSON"),
        ("[1, 2]", "must be an object with prompt and completion, not [1, 2]"),
        ('{"prompt": "a"}', "completion must be a text or a list of token ids, not None"),
        ('{"prompt": [99999], "completion": "a"}', "token id 99999 is not in the vocabulary"),
        ('{"prompt": "\\ud800", "completion": "a"}', "a lone surrogate"),
    ],
)
def test_wrong_line_of_a_file_is_named(holdfast, model, tmp_path, line, said):
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"prompt": "a", "completion": "b"}}\n{line}\n')
    result = holdfast("score", "--file", file, "-m", model, code=2)
    assert f"line 2 of {file}" in result.stderr
    assert said in result.stderr
    assert result.stdout == ""
