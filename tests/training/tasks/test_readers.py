"""Texts of files and how they become tokens, with small excerpts written here."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_chat, read_thoughts
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import (
    ChatFrame,
    TextExample,
    TextRules,
    ThoughtStep,
    make_batch,
)
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.tokenizer import EOS, build_tokenizer
from holdfast_thinking.settings import TrainingSettings
from support.task_texts import chunk_texts


def _prepared(
    examples: list[TextExample], frame: ChatFrame | None = None, **settings: Any
) -> tuple[Batch, Any]:
    words = [
        text for each in examples for text in (each.prompt, each.answer, *(s.thought for s in each.steps))
    ]
    tokenizer = build_tokenizer(words)
    rules = TextRules(TrainingSettings(chunk=4, **settings), 0, frame)
    return make_batch(examples, tokenizer, rules), tokenizer


STORY = TextExample(
    "Nora walked to the cellar. Piet took the lamp. Where is Nora? A:",
    " cellar.",
    (ThoughtStep(24, " Nora cellar"), ThoughtStep(44, " Piet lamp one"), ThoughtStep(59, "", " Nora")),
)


def test_thought_is_in_the_chunk_of_its_last_token() -> None:
    batch, tokenizer = _prepared([STORY])
    # Nora walked to the | cellar . Piet took | the lamp . Where | is Nora ? A
    assert chunk_texts(batch, tokenizer, 0) == {1: " Nora cellar", 2: " Piet lamp one"}
    assert batch.token_ids[0, batch.num_tokens[0] - 1] == tokenizer.token_to_id(EOS)


def test_delayed_thought_is_in_the_chunk_of_a_later_token() -> None:
    batch, tokenizer = _prepared([STORY], thought_delay=3)
    assert chunk_texts(batch, tokenizer, 0) == {1: " Nora cellar", 3: " Piet lamp one"}


def test_what_is_known_of_a_settled_prompt_is_thought_before_its_last_token() -> None:
    story = TextExample(
        "Where is Nora? Piet took the lamp. Nora walked to cellar. A:",
        " cellar.",
        (ThoughtStep(32, " Piet lamp one"), ThoughtStep(55, " Nora cellar")),
    )
    for delay in (0, 3):
        batch, tokenizer = _prepared([story], settle=True, thought_delay=delay)
        # Where is Nora ? | Piet took the lamp | . Nora walked to | cellar . A :
        assert chunk_texts(batch, tokenizer, 0) == {1 + delay // 3: " Piet lamp one", 3: " Nora cellar"}


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


def test_gold_thoughts_stand_in_the_prompt_or_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    prompt, marked = "Bob tosses it. Which side?", "Bob tosses ‹tails› it.‹so tails› Which side?"
    beside = [{"at": 9, "text": "tails"}, {"at": 13, "text": "so tails"}]
    lines = [
        {"prompt": prompt, "answer": "tails.", "thoughts": beside},
        {"prompt": marked, "answer": "tails."},
        {"prompt": marked, "answer": "tails.", "thoughts": []},
        {"prompt": prompt, "answer": "x", "thoughts": [{"at": 9, "state": "tails", "at_once": True}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    one, same, without, carried = read_thoughts(path)
    assert one.steps == (ThoughtStep(9, " tails"), ThoughtStep(13, " so tails"))
    assert one == same == TextExample(f"{prompt} A:", " tails.", one.steps)
    assert (without.message, without.steps) == (marked, ())
    assert carried.steps == (ThoughtStep(9, "", " tails", at_once=True),)


@pytest.mark.parametrize(
    ("thoughts", "named"),
    [
        ("tails", "Expected `array`, got `str` - at `\\$.thoughts`"),
        ([{"text": "tails"}], "missing required field `at`"),
        ([{"at": 1, "say": "tails"}], "unknown field `say`"),
        ([{"at": True, "text": "tails"}], "Expected `int`, got `bool` - at `\\$.thoughts\\[0\\].at`"),
        ([{"at": 6, "text": "tails"}], "at is 6; expected 0 to 5"),
        ([{"at": 3, "text": "a"}, {"at": 2, "text": "b"}], r"thoughts\[1\]: at is 2; expected 3 to 5"),
    ],
)
def test_bad_gold_thoughts_are_refused(tmp_path: Path, thoughts: object, named: str) -> None:
    path = tmp_path / "own.jsonl"
    fields = {"prompt": "a b c?", "answer": "b"}
    path.write_text("\n".join(json.dumps(each) for each in (fields, {**fields, "thoughts": thoughts})))
    with pytest.raises(ConfigError, match=f"line 2: .*{named}"):
        read_thoughts(path)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"prompt": "a b ‹tails c?"}, "prompt: a mark has one half"),
        ({"prompt": "‹tails› a b c?"}, r"thoughts\[0\]: at is -1; expected 0 to 6"),
        ({"prompt": "a b c?", "thought": []}, "unknown field `thought`"),
        ({"prompt": 5}, r"Expected `str`, got `int` - at `\$.prompt`"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, line: dict[str, object], named: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n" + json.dumps({"answer": "b", **line}))
    with pytest.raises(ConfigError, match=f"own.jsonl, line 2: .*{named}"):
        read_thoughts(path)


def test_prompts_of_a_task_are_drawn_as_messages(tmp_path: Path) -> None:
    drawn = draw_prompts("outside", 20, 1)
    assert len(drawn) == 20 and not any(each.endswith(" A:") for each in drawn)
    assert drawn == draw_prompts("outside", 20, 1) != draw_prompts("outside", 20, 2)
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": "."}) + "\n" for n in range(20)))
    assert sorted(draw_prompts(f"chat:{file}", 99, 0)) == sorted(f"{n}?" for n in range(20) if n % 10 < 9)
    for wrong in ("nothing", "chat:", "juggling.py:Juggling", f"{__file__}:Juggling"):
        with pytest.raises(ConfigError, match=r"expected|cannot be read"):
            draw_prompts(wrong, 1, 0)
