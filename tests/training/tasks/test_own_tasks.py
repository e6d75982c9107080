"""The tasks in benchmarks/thinking, which are examples of own tasks: they are loaded from their files."""

import pickle
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.thinking.babi import read_babi, to_line
from benchmarks.thinking.entities import Entities
from benchmarks.thinking.gsm8k import Gsm8k, parse_problem, renumber
from benchmarks.thinking.two_hop import TwoHop
from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_thoughts
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import ChatFrame, TextExample, TextRules, TextTask, make_batch
from holdfast_thinking.model.packed import IGNORED, PackSpec, pack
from holdfast_thinking.model.tokenizer import build_tokenizer, save_tokenizer
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.settings import SIZES, TrainingSettings
from support.thinking_models import thinking_config

FOLDER = Path(__file__).parents[3] / "benchmarks" / "thinking"
SETTINGS = TrainingSettings(size=SIZES["tiny"], max_events=2, chunk=16, max_thought=32, steps=2, batch=4)
ENTITIES, TWO_HOP = Entities(SETTINGS), TwoHop(SETTINGS)
CARRIED = Entities(replace(SETTINGS, carry=True))


def examples(task: TextTask, count: int = 300, most: int = 9) -> list[TextExample]:
    rng = random.Random(5)
    return [task.example(rng, rng.randint(1, most)) for _ in range(count)]


def test_texts_do_not_depend_on_where_a_file_lies(tmp_path: Path) -> None:
    copy = shutil.copy(FOLDER / "two_hop.py", tmp_path)
    there, here = (draw_prompts(f"{path}:TwoHop", 9, 1) for path in (FOLDER / "two_hop.py", copy))
    assert there == here


def test_class_in_a_file_is_a_task() -> None:
    """Its texts are the same in another process, which has no module of this name."""
    name = f"{FOLDER / 'entities.py'}:Entities"
    source = start_run(replace(SETTINGS, tasks=(name, "parity"), carry=True), torch.device("cpu")).source
    batch = source.batch(1)
    assert (batch.num_given is not None) and len(batch) == 4
    again = pickle.loads(pickle.dumps(source)).batch(1)
    assert (again.token_ids == batch.token_ids).all() and (again.thoughts == batch.thoughts).all()
    assert source.has_events(name)


@pytest.mark.parametrize("frame", [None, ChatFrame("Question: ", " Answer:")])
def test_given_state_is_added_and_not_learned(frame: ChatFrame | None) -> None:
    """It is the thought of the first chunk, without a target; what is read in that chunk is thought later."""
    told = examples(CARRIED, 60, 6)
    tokenizer = build_tokenizer(ENTITIES.words())
    batch = make_batch(told, tokenizer, TextRules(replace(SETTINGS, carry=True), 0, frame))
    thinking = thinking_config(carry=True, chunk=SETTINGS.chunk)
    due = batch.is_thought_about(thinking)
    packed = pack(batch, PackSpec((None,), thinking))
    assert packed.thought is not None
    assert (packed.thought.ids != IGNORED).sum() == ((batch.thoughts >= 0).sum(axis=2) + 1)[due].sum()
    for row, each in enumerate(told):
        said = [
            tokenizer.decode([int(token) for token in thought if token >= 0])
            for thought in batch.thoughts[row]
        ]
        assert due[row, 0] == (not each.given) and due[row, 1 : int(batch.num_tokens[row]) // 16].all()
        if each.given:
            assert said[0].split() == each.given.split(), each
        states = [step.state.split() for step in each.steps]
        assert all(not thought or thought.split() in states for thought in said[bool(each.given) :]), each


@pytest.mark.parametrize("text", ["Mary went.\n", "1 Where?\there\t7\n"])
def test_bad_line_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read_babi(path)


def test_babi_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(
        "1 Mary moved to the hall.\n2 Mary got the milk there.\n3 Where is the milk? \thall\t2 1\n"
    )
    examples = read_babi(path)
    path.write_text("\n".join(map(to_line, examples)))
    assert read_thoughts(path) == examples and len(examples[0].steps) == 3


def test_renumbered_question_has_the_results_of_its_new_numbers() -> None:
    """Results in the words of the solution change too. A number that means another thing stays."""
    solution = "He has 48/6=<<48/6=8>>8 bags. They cost 8*15=$<<8*15=120>>120 in 1 week.\n#### 120"
    question = "Bob puts 48 pens into bags of 6. A bag costs $15. What do the bags cost after 1 week?"
    problem = parse_problem({"question": question, "answer": solution})
    renumbered = [renumber(problem, random.Random(seed)) for seed in range(20)]
    assert len({each.question for each in renumbered}) > 10
    for each in renumbered:
        pens, in_bag, price, week = map(int, re.findall(r"\d+", each.question))
        bags, cost = pens // in_bag, pens // in_bag * price
        assert pens % in_bag == 0 and week == 1 and each.final == str(cost)
        words = f"He has {pens}/{in_bag}={bags} bags. They cost {bags}*{price}=${cost} in 1 week."
        assert each.words == words, each.question


def test_number_from_nowhere_leaves_a_question_as_it_is() -> None:
    fields = {"question": "Bob has 48 pens.", "answer": "He had 48+35=<<48+35=83>>83.\n#### 83"}
    problem = parse_problem(fields)
    assert problem.steps is not None and renumber(problem, random.Random(0)) is problem


def test_thoughts_about_a_question_are_at_the_letters_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk of letters has a calculation or its result, from its first token to its last."""
    tokenizer = build_tokenizer(["Ann has pens. She loses 2 of them. . a b c d e f g h A: 0"])
    save_tokenizer(tokenizer, tmp_path)
    tmp_path.joinpath("train.jsonl").write_text("")
    monkeypatch.setenv("GSM8K", str(tmp_path))
    settings = TrainingSettings(chunk=8, max_thought=12, backbone=str(tmp_path))
    problem = parse_problem({"question": "Ann has 9 pens.", "answer": "<<9-2=7>><<7*3*2=42>>\n#### 42"})
    batch = make_batch([Gsm8k(settings).write(problem)], tokenizer, TextRules(settings, 0))
    chunks = batch.token_ids[0].reshape(-1, 8)
    thoughts = [tokenizer.decode([int(id) for id in each if id >= 0]) for each in batch.thoughts[0]]
    said = [text for text in thoughts if text]
    assert said == ["9-2", "7", "7*3", "21", "21*2", "42"]
    first = thoughts.index("9-2")
    assert tokenizer.decode(chunks[first].tolist()) == " a b c d e f g h"
    assert thoughts[first : first + len(said)] == said
