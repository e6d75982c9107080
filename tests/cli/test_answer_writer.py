"""Answers and thoughts on the command line: thoughts go to stderr, stdout has the answer only."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from holdfast.cli import answer_writer
from holdfast.cli.answer_writer import AnswerWriter, NewThoughts, PromptText, WordWrap, thought_line
from holdfast.core.results import Thought
from holdfast.text.tokenizer import byte_tokenizer
from support.fake_server import FakeServer

PROMPT = "heads tails the coin is flips heads heads tails"
ASKED = ("-n", "16", "--ignore-eos", "--seed", "3", "--raw", "-d")
NONE = "this model does not think: there are no thoughts to show"


@pytest.fixture
def thinker(thinking_model):
    return str(thinking_model)


def thought(chunk, text, ids=(7,)):
    return Thought(chunk, 4 * chunk + 3, text, ids)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """One terminal for stdout and stderr, without colours."""
    both = Terminal()
    monkeypatch.setattr(answer_writer, "sys", SimpleNamespace(stdout=both))
    console = Console(file=both, force_terminal=True, color_system=None, soft_wrap=True, highlight=False)
    monkeypatch.setattr(answer_writer, "stderr", lambda: console)
    return both


def test_reasoning_is_shown_on_stderr_only(capsys, monkeypatch):
    monkeypatch.setattr(answer_writer, "stderr", lambda: Console(stderr=True, color_system=None))
    for with_thoughts in (True, False):
        writer = AnswerWriter(with_thoughts=with_thoughts)
        for text in ("Hm. ", "It is."):
            writer.write_reasoning(text)
        writer.write("Yes")
        writer.end()
        assert capsys.readouterr() == ("Yes\n", "Hm. It is.\n" if with_thoughts else "")


class Letters:
    """A prompt of letters, one a token."""

    def __init__(self, text):
        self._text, self._read = text, 0

    def __len__(self):
        return len(self._text)

    def take_until(self, length):
        piece, self._read = self._text[self._read : length], max(self._read, length)
        return piece


def say(writer):
    """A prompt of ten letters in chunks of four, and an answer."""
    writer.write("", [thought(0, "one"), thought(1, "", ())])
    writer.write("ab")
    writer.write("", [thought(2, "two\n2")])
    writer.write("cdef")
    writer.end()


def test_terminal_shows_thoughts_inside_the_text(screen):
    say(AnswerWriter(with_thoughts=True, prompt=Letters("0123456789")))
    assert screen.getvalue() == "0123 ‹one›456789\nab ‹two 2›cdef\n"


def test_conversation_shows_thoughts_before_the_answer(screen):
    writer = AnswerWriter(with_thoughts=True)
    writer.write("", [thought(0, "one"), thought(1, "two")])
    writer.write("yes", [thought(2, "three")])
    writer.end()
    assert screen.getvalue() == "‹one› ‹two› ‹three›\nyes\n"


def test_pipe_shows_each_thought_on_a_line(capsys):
    say(AnswerWriter(with_thoughts=True, prompt=Letters("0123456789")))
    told = capsys.readouterr()
    assert told.out == "abcdef\n"
    assert told.err.splitlines() == ["0123 ‹one›", "456789", "ab ‹two 2›"]


def test_thought_without_text_is_shown_as_token_ids():
    assert thought_line(thought(0, " a\n b ")) == "a b"
    assert thought_line(thought(0, "", (5, 6))) == "#5 #6"


def test_conversation_shows_a_thought_once():
    one, two, three = thought(0, "one"), thought(1, "two"), thought(2, "three")
    first = NewThoughts()
    assert first.select([one]) + first.select([two]) == [one, two]
    second = NewThoughts(first.turn)
    assert second.select([one, two, three]) == [three]
    other = thought(1, "other")
    third = NewThoughts(second.turn)
    assert third.select([one, other, three]) == [other, three]  # what lies behind a new one is new


def test_prompt_text_never_ends_inside_a_character():
    text = PromptText(byte_tokenizer(), "aé€")
    assert [text.take_until(length) for length in (2, 3, 5, 6, 6)] == ["a", "é", "", "€", ""]


def test_generate_writes_thoughts_to_stderr_only(holdfast, thinker):
    plain = holdfast("generate", PROMPT, "-m", thinker, *ASKED)
    shown = holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--thoughts")
    assert shown.stdout_bytes == plain.stdout_bytes
    assert "‹" not in plain.stderr
    lines = shown.stderr.splitlines()
    assert lines[0].startswith("heads tails the coin") and lines[0].endswith("›")
    (whole,) = [json.loads(holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--json").stdout)]
    told = [Thought(**{**one, "token_ids": tuple(one["token_ids"])}) for one in whole["thoughts"]]
    written = [f"‹{thought_line(one)}›" for one in told if one.token_ids]
    assert written and [line[line.index("‹") :] for line in lines if "‹" in line] == written
    assert [one.position for one in told] == [4 * one.chunk + 3 for one in told]


def test_stats_count_thoughts(holdfast, thinker, model):
    result = holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--stats=full")
    assert " · thoughts " in result.stderr and ", guessed " in result.stderr
    assert "thoughts" not in holdfast("generate", "the dog", "-m", model, *ASKED, "--stats=full").stderr


def test_each_choice_shows_the_thoughts_of_its_answer(holdfast, thinker):
    plain = holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--n", "2")
    result = holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--n", "2", "--thoughts")
    assert result.stdout_bytes == plain.stdout_bytes
    first, second = result.stderr.split("[2]")
    assert first.startswith("[1]\nheads tails") and "heads tails" not in second
    choices = json.loads(holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--n", "2", "--json").stdout)
    num_prompt = choices["prompt_tokens"]
    behind = [one for one in choices["choices"][1]["thoughts"] if one["position"] >= num_prompt]
    assert second.count("‹") == sum(bool(one["token_ids"]) for one in behind)


def test_no_think_has_no_thoughts(holdfast, thinker):
    def ask(*more):
        return json.loads(holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--json", *more).stdout)

    assert ask("--no-think")["thoughts"] == []
    assert ask("--no-think")["token_ids"] != ask()["token_ids"]
    shown = holdfast("generate", PROMPT, "-m", thinker, *ASKED, "--no-think", "--thoughts")
    assert shown.stderr == "without thinking there are no thoughts to show\n"


def test_plain_model_answers_with_a_note(holdfast, model):
    asked = ("generate", "the dog", "-m", model, *ASKED)
    plain, shown = holdfast(*asked), holdfast(*asked, "--thoughts")
    assert shown.stderr == f"{NONE}\n"
    assert shown.stdout == plain.stdout
    assert json.loads(holdfast(*asked, "--json").stdout)["thoughts"] == []


def test_chat_shows_new_thoughts_of_every_turn(holdfast, thinker):
    def chat(*more):
        lines = f"{PROMPT}\nthe coin is\n"
        return holdfast("chat", thinker, "-n", "9", "-t", "0", "--ignore-eos", *more, stdin=lines)

    shown, hidden = chat(), chat("--no-thoughts")
    assert shown.stdout == hidden.stdout
    assert "‹" in shown.stderr and "‹" not in hidden.stderr
    assert "‹" not in chat("--no-think").stderr
    again = holdfast("chat", thinker, "-n", "9", "-t", "0", "--ignore-eos", stdin=f"{PROMPT}\n")
    assert shown.stderr.startswith(again.stderr)


def test_chat_with_a_plain_model_has_no_note_by_default(holdfast, model):
    asked = ("chat", model, "-n", "4", "-t", "0")
    assert NONE not in holdfast(*asked, stdin="the dog\n").stderr
    assert NONE in holdfast(*asked, "--thoughts", stdin="the dog\n").stderr


def test_chat_shows_the_thoughts_of_a_server(holdfast, monkeypatch):
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    told = {"index": 0, "chunk": 0, "position": 3, "text": "tails", "token_ids": [7]}

    class Thinking(FakeServer):
        def _choice(self, asked, text, finish_reason):
            chunk = super()._choice(asked, text, finish_reason)
            return {**chunk, "holdfast": {"thoughts": [told]}} if finish_reason is None else chunk

    with Thinking(lambda body: ["heads"]) as server:
        result = holdfast("chat", "--url", server.url, stdin="flip\n")
        assert (result.stdout, result.stderr.splitlines()[0]) == ("heads\n", "‹tails›")
        assert "‹" not in holdfast("chat", "--url", server.url, "--no-thoughts", stdin="flip\n").stderr
        holdfast("chat", "--url", server.url, "--no-think", stdin="flip\n")
        assert [asked.body.get("think") for asked in server.completions()] == [None, None, False]


def wrap(text, width, size=None):
    """The text written in pieces of a size."""
    written = []
    wrapper = WordWrap(written.append, lambda: width)
    for at in range(0, len(text), size or len(text) or 1):
        wrapper.write(text[at : at + (size or len(text))])
    wrapper.flush()
    return "".join(written)


@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the lazy dog sleeps", "the lazy\ndog sleeps"),
        ("one\n\ntwo  three", "one\n\ntwo  three"),
        ("incomprehensibilities of it", "incomprehensibilities\nof it"),
        ("a incomprehensibilities", "a\nincomprehensibilities"),
        ("  indented words wrap", "  indented\nwords wrap"),
        ("    code is not wrapped here", "    code is not wrapped here"),
        (
            "```\ncode is not wrapped\n```\nbut this text is",
            "```\ncode is not wrapped\n```\nbut this\ntext is",
        ),
        ("ends with space ", "ends with\nspace "),
        ("", ""),
    ],
)
def test_lines_are_broken_between_words(text, expected, size):
    assert wrap(text, 10, size) == expected


def test_wide_characters_take_two_columns_and_may_be_separated():
    assert wrap("你好世界你好", 8) == "你好世界\n你好"


def test_a_word_is_held_back_until_it_is_complete():
    written = []
    wrapper = WordWrap(written.append, lambda: 10)
    wrapper.write("the la")
    assert "".join(written) == "the"
    wrapper.write("zy ")
    assert "".join(written) == "the lazy"


def test_cells_written_by_others_count():
    written = []
    wrapper = WordWrap(written.append, lambda: 10)
    wrapper.write("the ")
    wrapper.flush()
    wrapper.advance(5)
    wrapper.write("dog ")
    assert "".join(written) == "the \ndog"
