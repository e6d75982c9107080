"""`holdfast generate`: several choices, what may be said, what is reported, the form of the answer."""

import json
import re

import pytest

from holdfast.core.structured_output import MAX_GRAMMAR_CHARS

QUICK = ("--max-tokens", "6", "--ignore-eos", "--raw")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "ab" | "cd"\n'


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


def test_token_lists_and_biases_restrict_the_answer(ask):
    asked = ("the dog", *QUICK, "-t", "0")
    plain = ask(*asked)["token_ids"]
    assert ask(*asked, "--logit-bias", "40=100")["token_ids"] == [40] * 6
    allowed = ask(*asked, "--allowed-token-id", "40", "--allowed-token-id", "41")["token_ids"]
    assert set(allowed) <= {40, 41}
    assert plain[0] not in ask(*asked, "--bad-token-id", str(plain[0]))["token_ids"]


def test_bad_word_is_not_generated(ask):
    asked = ("the dog", *QUICK, "-t", "0", "--logit-bias", "40=100")  # a hundred does not outweigh a ban
    word = ask(*asked)["text"][0]
    assert word not in ask(*asked, "--bad-word", word)["text"]


def test_penalties_reduce_repetition(ask):
    asked = ("the dog", "-n", "24", "--ignore-eos", "--raw", "-t", "0", "--logit-bias", "40=20")
    assert ask(*asked)["token_ids"] == [40] * 24
    assert ask(*asked, "--frequency-penalty", "2")["token_ids"].count(40) < 24


def test_options_set_the_parameters_of_their_name(ask):
    values = {
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), 1.5),
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "min_tokens": 2,
        "logprobs": 3,
    }
    options = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    settings = ask("the dog", *QUICK, *options, "--receipt", "-")["receipt"]["settings"]
    assert {name: settings[name] for name in values} == values


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


@pytest.mark.parametrize(
    "more", [("--speculation", "off"), ("--spot-check-rate", "1"), ("--no-prefix-cache",)]
)
def test_engine_options_change_no_bit(ask, more):
    asked = (
        "the the the the",
        "-n",
        "12",
        "--raw",
        "-d",
        "--seed",
        "1",
        "--determinism",
        "verify",
        "--n",
        "2",
    )
    plain, other = ask(*asked), ask(*asked, *more)
    assert plain["choices"] == other["choices"]
    if "off" in more:
        assert other["stats"]["looked_up"] == 0


@pytest.mark.parametrize("given", ["text", "file"])
def test_json_schema_from_text_and_file(ask, tmp_path, given):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    answer = ask("the dog", "-n", "60", "--json-schema", schema if given == "file" else json.dumps(SCHEMA))
    assert list(json.loads(answer["text"])) == ["a"]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("given", ["text", "file"])
def test_lark_grammar(ask, tmp_path, given):
    grammar = tmp_path / "form.lark"
    grammar.write_text(GRAMMAR)
    assert ask("the dog", "--lark", grammar if given == "file" else GRAMMAR)["text"] in ("ab", "cd")


def test_regex_choice_and_json_object(ask):
    assert re.fullmatch("[0-9]{3}x", ask("the dog", "--regex", "[0-9]{3}x")["text"])
    assert ask("the dog", "--choice", "yes", "--choice", "no")["text"] in ("yes", "no")
    assert ask("the dog", "-n", "9", "--json-object")["text"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--regex", "a", "--choice", "b"), "exactly one of json_schema, json_object, regex, choice, lark"),
        (("--json-schema", "/no/such/file"), "the JSON schema '/no/such/file' cannot be read: No such file"),
        (("--lark", "/no/such/file"), "the Lark grammar '/no/such/file' cannot be read: No such file"),
        (("--lark", "x" * 5000), "cannot be read: File name too long"),
        (("--json-schema", "/"), "cannot be read: Is a directory"),
        (("--json-schema", '{"type": "no such type"}'), "the JSON schema cannot be used"),
        (("--json-object", "--ignore-eos"), "leave ignore_eos out"),
        (("--json-schema", "/dev/zero"), "the JSON schema is too large"),
    ],
)
def test_wrong_structured_output_is_one_line_and_exit_code_2(holdfast, model, arguments, said):
    result = holdfast("generate", "the dog", "-m", model, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_schema_file_that_is_no_text_is_refused(holdfast, model, tmp_path):
    file = tmp_path / "schema.json"
    file.write_bytes(b"\xff\xfe")
    result = holdfast("generate", "the dog", "-m", model, "--json-schema", file)
    assert result.exit_code == 2
    assert "is no valid UTF-8" in result.stderr
    file.write_text("[" * (MAX_GRAMMAR_CHARS + 9))
    assert "too large" in holdfast("generate", "the dog", "-m", model, "--json-schema", file).stderr
