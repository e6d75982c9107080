"""Texts of files and how they become tokens, with small excerpts written here."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast_thinking.data import preparation
from holdfast_thinking.data.general import read_chat
from holdfast_thinking.data.preparation import prepare_all
from holdfast_thinking.data.text_examples import (
    ChatFrame,
    TextExample,
    TextRules,
    ThoughtStep,
    prepare_texts,
)
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.tokenizer import EOS, build_tokenizer
from holdfast_thinking.tasks.babi import read_babi
from holdfast_thinking.tasks.gsm8k import read_gsm8k
from holdfast_thinking.tasks.two_hop import TwoHop
from support.task_texts import chunk_texts

BABI = """1 Nora walked to the cellar.
2 Piet took the lamp.
3 Where is Nora? \tcellar\t1
4 Nora went to the attic.
5 Where is Nora? \tattic\t4
6 Nora got the cup there.
7 Nora gave the cup to Piet.
8 Piet dropped the lamp.
9 What is Piet carrying? \tcup\t7
1 Piet is in the garden.
2 Where is Piet?\tgarden\t1
"""
GSM8K = (
    '{"question": "Ola has 12 pens and buys 3 boxes of 4. She loses half. How many are left?", "answer": '
    '"3*4=<<3*4=12>>12 pens bought.\\n12+12=<<12+12=24>>24.\\n24/2=<<24/2=12>>12\\n#### 12"}\n'
    '{"question": "A dozen eggs, twice.", "answer": "<<12*2=24>>24\\n#### 24"}\n'
)


def test_babi_thoughts_are_what_a_fact_changes(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(BABI)
    first, second, third, fourth = read_babi(path)
    assert first.prompt == "Nora walked to the cellar. Piet took the lamp. Where is Nora? A:"
    assert first.answer == " cellar."
    assert [each.thought for each in first.steps] == [" Nora cellar", " Piet lamp one", ""]
    assert [each.state for each in first.steps] == [
        " Nora cellar",
        " Nora cellar Piet lamp one",
        " Nora cellar",
    ]
    assert first.written_answer("cot") == " Nora cellar. Piet lamp one. So cellar."
    assert first.prompt[: first.steps[2].settled_at + 1].endswith("Where is Nora")
    assert first.prompt[: first.steps[0].settled_at + 1].endswith("cellar")
    assert [each.thought for each in second.steps][-2:] == [" Nora attic", ""]
    assert [each.thought for each in third.steps][-4:-1] == [
        " Nora attic cup one",
        " Nora attic none, Piet lamp cup two",
        " Piet cup one",
    ]
    assert "Nora" not in fourth.prompt


def test_babi_story_of_another_kind_has_its_supporting_facts(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text("1 The hill is north of the lake.\n2 Owls sleep.\n3 What is north? \thill\t1\n")
    (example,) = read_babi(path)
    assert example.prompt == "What is north? The hill is north of the lake. Owls sleep. What is north? A:"
    assert [each.thought for each in example.steps] == [" The hill is north of the lake"]


@pytest.mark.parametrize("text", ["Mary went.\n", "1 Where?\there\t7\n", "1\n", "1 Where?\there\tx\n"])
def test_bad_babi_story_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read_babi(path)


def test_gsm8k_examples(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(GSM8K)
    first, second = read_gsm8k(path)
    assert first.answer == " The answer is 12."
    assert first.written_answer("cot") == " 3*4=12. 12+12=24. 24/2=12. So The answer is 12."
    assert [each.thought for each in first.steps] == [" 3*4=12", " 12+12=24", " 24/2=12"]
    ends = [first.prompt[: each.settled_at + 1] for each in first.steps]
    bought = "Ola has 12 pens and buys 3 boxes of 4."
    assert ends == [bought, bought, f"{bought} She loses half."]  # none before one it follows
    assert second.prompt[: second.steps[0].settled_at + 1] == "A dozen eggs, twice."


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"question": 1, "answer": "#### 1"}',
        '{"question": "q"}',
        '{"question": "q", "answer": "no end"}',
    ],
)
def test_bad_gsm8k_line_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_gsm8k(path)


def _prepared(examples: list[TextExample], **rules: Any) -> tuple[Batch, Any]:
    words = [
        text for each in examples for text in (each.prompt, each.answer, *(s.thought for s in each.steps))
    ]
    tokenizer = build_tokenizer(words)
    chosen = TextRules(**{"form": "thinking", "chunk": 4, "max_thought": 8, "eos_id": 0} | rules)
    return prepare_texts(examples, tokenizer, chosen).batch(range(len(examples))), tokenizer


def test_thought_is_in_the_chunk_of_its_last_token(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(BABI)
    batch, tokenizer = _prepared(read_babi(path))
    # Nora walked to the | cellar . Piet took | the lamp . Where | is Nora ? A
    assert chunk_texts(batch, tokenizer, 0) == {1: " Nora cellar", 2: " Piet lamp one"}
    assert batch.token_ids[0, batch.num_tokens[0] - 1] == tokenizer.token_to_id(EOS)


def test_delayed_thought_is_in_the_chunk_of_a_later_token(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(BABI)
    batch, tokenizer = _prepared(read_babi(path), thought_delay=3)
    assert chunk_texts(batch, tokenizer, 0) == {1: " Nora cellar", 3: " Piet lamp one"}


def test_thoughts_that_do_not_fit_move_to_the_next_chunk() -> None:
    steps = tuple(ThoughtStep(2, f" {number} + 1") for number in range(1, 4))
    batch, tokenizer = _prepared(
        [TextExample("one two three four five six seven eight nine A:", " x.", steps)]
    )
    assert chunk_texts(batch, tokenizer, 0) == {0: " 1 + 1 2 + 1", 1: " 3 + 1"}


def test_carried_state_is_thought_instead_and_replaces_what_its_chunk_has() -> None:
    steps = (
        ThoughtStep(1, "", state=" up"),
        ThoughtStep(6, " down"),  # has no state: added
        ThoughtStep(30, " left", state=" up left"),
        ThoughtStep(32, " right", state=" up right"),
    )
    example = TextExample("up" + " idle" * 12 + " A:", " up.", steps)
    batch, tokenizer = _prepared([example], carry=True)
    assert chunk_texts(batch, tokenizer, 0) == {0: " up down", 1: " up right"}
    batch, tokenizer = _prepared([example])
    assert chunk_texts(batch, tokenizer, 0) == {0: " down", 1: " left right"}


def test_state_of_a_question_is_thought_without_delay() -> None:
    steps = (ThoughtStep(0, " a"), ThoughtStep(8, "", state=" e f", at_once=True))
    example = TextExample("a b c d e f g h i j k l A:", " d.", steps)
    batch, tokenizer = _prepared([example], carry=True, thought_delay=3)
    assert chunk_texts(batch, tokenizer, 0) == {0: " a", 1: " e f"}


def test_chat_frame_shifts_thoughts() -> None:
    example = TextExample("a b c A:", " d.", (ThoughtStep(0, " a"),))
    batch, tokenizer = _prepared([example], frame=ChatFrame("u u u u ", " e e"))
    ids = batch.token_ids[0]
    assert tokenizer.decode(ids[: batch.num_prompt[0]].tolist()) == "u u u u a b c e e"
    assert chunk_texts(batch, tokenizer, 0) == {1: " a"}


def test_message_follows_another_with_its_answer_and_its_thoughts() -> None:
    first = TextExample("a b c A:", " d.", (ThoughtStep(2, " b"),))
    second = TextExample("e f g A:", " h.", (ThoughtStep(0, " e"), ThoughtStep(4, " g")), follows=first)
    frame = ChatFrame("u ", " r ", " n ")
    batch, tokenizer = _prepared([second, first], frame=frame, thinks_answer=True)
    whole, alone = (
        tokenizer.decode(batch.token_ids[row, : batch.num_prompt[row]].tolist()) for row in (0, 1)
    )
    assert (whole, alone) == ("u a b c r d. n e f g r ", "u a b c r ")
    answers = [
        tokenizer.decode(batch.token_ids[row, batch.num_prompt[row] : batch.num_tokens[row] - 1].tolist())
        for row in (0, 1)
    ]
    assert answers == ["h.", "d."]
    said = chunk_texts(batch, tokenizer, 0)
    assert "".join(said[chunk] for chunk in sorted(said)) == " bd. e gh."
    assert chunk_texts(batch, tokenizer, 1).items() <= said.items()


@pytest.mark.parametrize("carry", [False, True])
def test_answer_is_the_last_thought_about_a_chat_message(carry: bool) -> None:
    told = TextExample("a b c d e f g A:", " d.", (ThoughtStep(0, " a"), ThoughtStep(12, " g", state=" a g")))
    general = TextExample("a b c A:", " d.", (), has_chain=False)
    rules = {"carry": carry, "thought_delay": 1, "thinks_answer": True}
    batch, tokenizer = _prepared([told, general], frame=ChatFrame("a b c d ", " e e"), **rules)
    assert chunk_texts(batch, tokenizer, 0) == {1: " a", 2: "d." if carry else " gd."}
    assert chunk_texts(batch, tokenizer, 1) == {}
    batch, tokenizer = _prepared([told], **rules)  # no chat message
    assert chunk_texts(batch, tokenizer, 0) == {0: " a", 1: " a g" if carry else " g"}


def test_general_text_has_no_thoughts_and_no_chain(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": "Hello!", "answer": "Hello, how are you?"}\n')
    (example,) = read_chat(path)
    assert example.written_answer("cot") == "Hello, how are you?" and not example.steps
    path.write_text('{"prompt": "Hello!"}\n')
    with pytest.raises(ConfigError, match="line 1"):
        read_chat(path)


def test_texts_do_not_depend_on_the_processes_that_tokenise_them(monkeypatch: pytest.MonkeyPatch) -> None:
    task, rules = TwoHop(), TextRules("thinking", 4, 24, 0)
    tokenizer = build_tokenizer(task.words())
    monkeypatch.setattr(preparation, "_SHARD", 3)
    rng = random.Random(0)
    examples = {
        name: [task.example(rng, 2) for _ in range(count)] for name, count in (("one", 7), ("two", 2))
    }
    alone = prepare_all(examples, tokenizer, rules)
    assert [len(each) for each in alone.values()] == [7, 2]
    monkeypatch.setattr(
        preparation, "ProcessPoolExecutor", lambda *_, initializer, initargs: _Here(initializer, initargs)
    )
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(preparation, "_FEW", 0)
    monkeypatch.setattr(preparation.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(preparation.signal, "signal", lambda *_: None)
    pooled = prepare_all(examples, tokenizer, rules)
    for name, one in alone.items():
        batch, other = one.batch(range(len(one))), pooled[name].batch(range(len(one)))
        assert (batch.token_ids == other.token_ids).all() and (batch.thoughts == other.thoughts).all()


class _Here:
    """A pool that works in this process."""

    def __init__(self, initializer: Any, initargs: Any) -> None:
        initializer(*initargs)

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        preparation._worker.clear()

    def map(self, work: Any, items: Any) -> list[Any]:
        return [work(pickle.loads(pickle.dumps(each))) for each in items]
