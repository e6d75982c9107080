"""The tasks in benchmarks/thinking, which are examples of own tasks: they are loaded from their files."""

import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.thinking.babi import read_babi, to_line
from benchmarks.thinking.entities import Entities
from benchmarks.thinking.two_hop import TwoHop
from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_thoughts
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import ChatFrame, TextExample, TextRules, TextTask, make_batch
from holdfast_thinking.model.packed import IGNORED, PackSpec, pack
from holdfast_thinking.model.tokenizer import build_tokenizer
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
