"""bAbI and GSM8K files, as far as small excerpts written here go."""

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.training.tasks.babi import read_babi
from holdfast.training.tasks.gsm8k import read_gsm8k
from holdfast.training.tasks.text_examples import batch_texts
from holdfast.training.tokenizer import EOS, build_tokenizer

BABI = """1 Nora walked to the cellar.
2 Piet took the lamp.
3 Where is Nora? \tcellar\t1
4 Nora went to the attic.
5 Where is Nora? \tattic\t4
1 Piet is in the garden.
2 Where is Piet?\tgarden\t1
"""
GSM8K = (
    '{"question": "Ola has 12 pens and buys 3 boxes of 4. She loses half. How many are left?", "answer": '
    '"3*4=<<3*4=12>>12 pens bought.\\n12+12=<<12+12=24>>24.\\n24/2=<<24/2=12>>12\\n#### 12"}\n'
    '{"question": "A dozen eggs, twice.", "answer": "<<12*2=24>>24\\n#### 24"}\n'
)


def test_babi_examples(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(BABI)
    first, second, third = read_babi(path)
    assert first.prompt == "Where is Nora? Nora walked to the cellar. Piet took the lamp. Where is Nora? A:"
    assert first.answer == " cellar."
    (step,) = first.steps
    assert step.thought == " Nora walked to the cellar"
    assert first.prompt[: step.settled_at + 1].endswith("cellar")
    assert [each.thought for each in second.steps] == [" Nora went to the attic"]
    assert "Nora" not in third.prompt


@pytest.mark.parametrize("text", ["Mary went.\n", "1 Where?\there\t7\n", "1\n"])
def test_bad_babi_story_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read_babi(path)


def test_gsm8k_examples(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(GSM8K)
    first, second = read_gsm8k(path)
    assert first.answer == " 12"
    assert [each.thought for each in first.steps] == [" 3*4=12", " 12+12=24", " 24/2=12"]
    ends = [first.prompt[: each.settled_at + 1] for each in first.steps]
    assert ends == ["Ola has 12 pens and buys 3 boxes of 4."] * 3  # none before one it follows
    assert second.prompt[: second.steps[0].settled_at + 1] == "A dozen eggs, twice."


@pytest.mark.parametrize("line", ["{", "[1]", '{"question": "q"}', '{"question": "q", "answer": "no end"}'])
def test_bad_gsm8k_line_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_gsm8k(path)


def test_thought_is_in_the_chunk_of_its_last_token(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_text(BABI)
    examples = read_babi(path)
    tokenizer = build_tokenizer([each.prompt + each.answer for each in examples])
    batch = batch_texts(examples, tokenizer, 4, 8, tokenizer.token_to_id(EOS))
    # Where is Nora ? | Nora walked to the | cellar
    told = {
        chunk: tokenizer.decode(ids[ids >= 0].tolist())
        for chunk, ids in enumerate(batch.thoughts[0])
        if (ids >= 0).any()
    }
    assert told == {2: " Nora walked to the cellar"}
    assert batch.token_ids[0, batch.num_tokens[0] - 1] == tokenizer.token_to_id(EOS)
