"""The tasks in benchmarks/thinking, which are examples of own tasks: they are loaded from their files."""

import pickle
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.thinking.babi import read_babi
from benchmarks.thinking.entities import Entities
from benchmarks.thinking.gsm8k import read_gsm8k
from benchmarks.thinking.two_hop import TwoHop
from holdfast.errors import ConfigError
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import ChatFrame, TextExample, TextRules, TextTask, make_batch
from holdfast_thinking.model.packed import IGNORED, PackSpec, pack
from holdfast_thinking.model.tokenizer import build_tokenizer
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.settings import SIZES, TrainingSettings

FOLDER = Path(__file__).parents[3] / "benchmarks" / "thinking"
SETTINGS = TrainingSettings(size=SIZES["tiny"], max_events=2, chunk=16, max_thought=32, steps=2, batch=4)
ENTITIES, TWO_HOP = Entities(SETTINGS), TwoHop(SETTINGS)
CARRIED = Entities(replace(SETTINGS, carry=True))
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


def test_entity_thoughts_answer_every_question() -> None:
    """The last thought about boxes or about rooms has the answer, and so has the last state."""
    for each in examples(ENTITIES):
        *told, asked = each.steps
        assert asked.at_once and not asked.thought
        clauses = [clause.split() for step in told for clause in step.thought.split(",")]
        words = told[-1].state.split()
        places = dict(zip(words[::2], words[1::2], strict=True))
        question = each.prompt[each.prompt.rindex(". ") + 2 :].removesuffix("? A:")
        answer = each.answer.strip(" .")
        if found := re.fullmatch(r"What is in the (\w+) box", question):
            last = [clause for clause in clauses if clause[0] == found[1]][-1]
            assert " and ".join(last[1:]) == answer, each
            assert asked.state.split() == last, each
            held = [name for name, place in places.items() if place == found[1]]
            assert held == ([] if answer == "nothing" else last[1:]), each
        else:
            name = question.removeprefix("Where is ").removeprefix("the ")
            last = [clause for clause in clauses if name in clause][-1]
            assert answer == (last[1] if last[0] == name else f"{last[0]} box"), each
            assert asked.state.split() == [name, answer.removesuffix(" box")], each
            assert places[name] == answer.removesuffix(" box"), each


def test_continued_stories_follow_from_what_is_given() -> None:
    """The text read again, with patterns, from the given state on."""
    puts = re.compile(
        r"[Tt]he (\w+) (?:in|to|goes into|and drops it into) the (\w+) box\.$"  # a thing, a box
    )
    pours = re.compile(r"(?:from|pours) the (\w+) box (?:to|into) the (\w+) box\.$")
    swaps = re.compile(r"(?:swaps|exchanges) the (\w+) (?:and|for) the (\w+)\.$")
    walks = re.compile(r"^(\w+) (?:goes to|walks into|runs to|is in) the (\w+)(?: now)?\.$")
    continued = [each for each in examples(CARRIED, 400) if each.given]
    assert 200 < len(continued) < 280  # three of five
    for each in continued:
        words = each.given.split()
        places = dict(zip(words[::2], words[1::2], strict=True))
        states = iter(step.state for step in each.steps)
        for sentence in re.findall(r"[^.?]+\.", each.message):
            if found := puts.search(sentence):
                places[found[1]] = found[2]
            elif found := pours.search(sentence):
                for name, place in places.items():
                    places[name] = found[2] if place == found[1] else place
            elif found := swaps.search(sentence):
                places[found[1]], places[found[2]] = places[found[2]], places[found[1]]
            elif found := walks.search(sentence.strip()):
                places[found[1]] = found[2]
            else:
                continue
            assert next(states) == "".join(f" {name} {place}" for name, place in places.items()), each
        asked, *found_there = next(states).split()
        answer = each.answer.strip(" .").removesuffix(" box")
        assert answer == (places.get(asked) or " and ".join(found_there)), each
        assert next(states, None) is None


@pytest.mark.parametrize("frame", [None, ChatFrame("Question: ", " Answer:")])
def test_given_state_is_added_and_not_learned(frame: ChatFrame | None) -> None:
    """It is the thought of the first chunk, without a target; what is read in that chunk is thought later."""
    told = examples(CARRIED, 60, 6)
    tokenizer = build_tokenizer(ENTITIES.words())
    batch = make_batch(told, tokenizer, TextRules("thinking", 16, 32, 0, frame, carry=True))
    due = batch.is_thought_about(True)
    packed = pack(batch, PackSpec((None,), 2, while_answering=True, carry=True))
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


def test_two_hop_text_never_says_the_answer() -> None:
    task, rng = TWO_HOP, random.Random(3)
    for each in examples(task):
        assert each.answer.strip(" .") not in each.prompt
    new = 0
    for _ in range(200):
        asked = task.eval_example(rng, 1)
        assert len(asked.prompt.split()) > 8
        town = next(town for town in task.towns if town in asked.prompt)
        new += town in task.new_towns
    assert 60 < new < 140
    trained = " ".join(
        each.prompt for each in examples(task, 2000) if " in " in each.prompt and len(each.prompt) > 60
    )
    assert not any(f" in {town}." in trained for town in task.new_towns)


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
    ("read", "text"),
    [
        (read_babi, "Mary went.\n"),
        (read_babi, "1 Where?\there\t7\n"),
        (read_gsm8k, "{"),
        (read_gsm8k, '{"question": 1, "answer": "#### 1"}'),
        (read_gsm8k, '{"question": "q", "answer": "no end"}'),
    ],
)
def test_bad_line_is_refused(tmp_path: Path, read: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read(path)
