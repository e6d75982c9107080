"""`holdfast generate`: several choices, what may be said, what is reported, the form of the answer."""

import json
import re

import pytest

QUICK = ("--max-tokens", "6", "--ignore-eos", "--raw")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture
def ask(holdfast, model):
    """`ask("the dog", "-n", "3")` gives the JSON of an answer."""

    def call(*arguments):
        result = holdfast("generate", "-m", model, "--json", *arguments)
        assert result.exit_code == 0, result.stderr
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
    asked = ("the dog", *QUICK, "-d", "--seed", "5", "--logprobs", "1")
    alone, several = ask(*asked), ask(*asked, "--n", "3")
    assert len(several["choices"]) == 3
    assert len({tuple(choice["token_ids"]) for choice in several["choices"]}) == 3
    for field, value in several["choices"][0].items():
        assert alone[field] == value and field not in several
    assert "choices" not in alone  # the answer is printed once


def test_choices_have_headings_in_order(holdfast, model, ask):
    asked = ("the dog", *QUICK, "-d", "--seed", "5", "--n", "3")
    first, second, third = (choice["text"] for choice in ask(*asked)["choices"])
    result = holdfast("generate", "-m", model, *asked, "--stats")
    assert result.stdout == f"[1]\n{first}\n\n[2]\n{second}\n\n[3]\n{third}\n"
    assert " · 3 choices · 18 tokens · seed 5 · length, length, length · prompt " in result.stderr


def test_headings_of_several_prompts_with_several_choices(holdfast, model):
    result = holdfast(
        "generate", "-m", model, "-p", "dog", "-p", "fox", *QUICK, "--n", "2", "--logprobs", "0"
    )
    assert re.findall(r"^\[.*\]$", result.stdout, re.MULTILINE) == ["[1.1]", "[1.2]", "[2.1]", "[2.2]"]
    titles = re.findall("logprobs of answer (.*)", result.stderr)
    assert [title.strip() for title in titles] == ["1.1", "1.2", "2.1", "2.2"]


def test_prompt_logprobs_are_reported(holdfast, model, ask):
    asked = ("the dog", *QUICK, "--prompt-logprobs", "2")
    answer = ask(*asked)
    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert len(others) == answer["prompt_tokens"] - 1
    assert all(len(one["top"]) == 2 for one in others)
    table = holdfast("generate", "-m", model, *asked).stderr
    assert "logprobs of prompt 1" in table
    assert all(one["bits"] in table for one in others)


def test_prompt_logprobs_are_off_by_default(ask):
    assert ask("the dog", *QUICK)["prompt_logprobs"] is None


def test_echo_repeats_the_prompt(holdfast, model, ask):
    assert ask("the dog", *QUICK, "--echo")["text"].startswith("the dog")
    result = holdfast("generate", "the dog", "-m", model, "-n", "0", "--raw", "--echo")
    assert result.stdout == "the dog\n"


def test_fingerprint_is_that_of_the_receipt(ask):
    answer = ask("the dog", *QUICK, "--receipt", "-")
    assert re.fullmatch("[0-9a-f]{64}", answer["fingerprint"])
    assert answer["receipt"]["fingerprint"]["digest"] == answer["fingerprint"]


def test_structured_output(ask):
    answer = ask("the dog", "-n", "60", "--json-schema", json.dumps(SCHEMA))
    assert list(json.loads(answer["text"])) == ["a"] and answer["finish_reason"] == "stop"
    assert ask("the dog", "--lark", 'start: "ab" | "cd"\n')["text"] in ("ab", "cd")
    assert re.fullmatch("[0-9]{3}x", ask("the dog", "--regex", "[0-9]{3}x")["text"])
    assert ask("the dog", "--choice", "yes", "--choice", "no")["text"] in ("yes", "no")
    assert ask("the dog", "-n", "9", "--json-object")["text"].lstrip().startswith("{")
