"""Texts made of phrases: positions of tokens, chunks of thoughts."""

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast_thinking.model.batch import Batch, join_batches
from holdfast_thinking.tasks.phrases import DrawnTexts, PhraseTable, assemble

PIECES = PhraseTable(["ab|c", "d", "xy", "z"])
TOKENS = PIECES.encoded(lambda text: [ord(letter) for letter in text])


def _assemble(rows: list[list[str]], told: dict[tuple[int, int], list[str]], **options: bool) -> Batch:
    """Texts as phrases, the last of each its answer; what is thought at (text, phrase)."""
    width = max(map(len, rows))
    phrases = np.array([[PIECES.number(each) for each in [*row, *[""] * (width - len(row))]] for row in rows])
    thoughts = np.zeros((*phrases.shape, 2), dtype=np.int64)
    for (text, phrase), said in told.items():
        thoughts[text, phrase, : len(said)] = PIECES.numbers(said)
    is_answer = np.zeros(phrases.shape, dtype=np.bool_)
    for text, row in enumerate(rows):
        is_answer[text, len(row) - 1] = True
    return assemble(DrawnTexts(phrases, thoughts, is_answer, **options), TOKENS, 3, 4, 7)


def _text(ids: np.ndarray) -> str:
    return "".join(chr(id_) if id_ > 7 else str(id_) for id_ in ids)


def test_tokens_and_thoughts_are_in_their_chunks() -> None:
    batch = _assemble(
        [["d", "ab|c", "d", "", "ab|c", "d"], ["ab|c", "d"]],
        {(0, 1): ["xy"], (0, 4): ["z", "xy"], (1, 0): ["z"]},
    )
    assert [_text(row) for row in batch.token_ids] == ["dabcdabcd7" + "00", "abcd7" + "0" * 7]
    assert batch.num_prompt.tolist() == [8, 3] and batch.num_tokens.tolist() == [10, 5]
    told = [[_text(ids[ids >= 0]) for ids in row] for row in batch.thoughts]
    assert told == [["xy", "", "zxy", ""], ["z", "", "", ""]]  # a step is settled at its bar: "ab"


@pytest.mark.parametrize("replaces", [False, True])
def test_two_steps_in_one_chunk(replaces: bool) -> None:
    batch = _assemble([["d", "d", "d", "d"]], {(0, 0): ["xy"], (0, 2): ["z"]}, replaces=replaces)
    first = batch.thoughts[0, 0]
    assert _text(first[first >= 0]) == ("z" if replaces else "xyz")


def test_too_long_thought_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_thought is 4"):
        _assemble([["d", "d", "d"]], {(0, 0): ["xy", "xy"], (0, 1): ["z"]})


def test_batches_can_be_joined_and_divided() -> None:
    one = _assemble([["d", "d"]], {(0, 0): ["z"]})
    other = _assemble([["ab|c", "ab|c", "d"]], {(0, 0): ["xy"]})
    both = join_batches([one, other])
    assert both.token_ids.shape == (2, 9) and both.thoughts.shape == (2, 3, 2)
    first = both.take_range(0, 1)
    assert np.array_equal(first.token_ids, one.token_ids) and np.array_equal(first.thoughts, one.thoughts)
    assert both.is_thought_about(True).tolist() == [[True, False, False], [True, True, False]]
    assert both.is_thought_about(False).tolist() == [[False, False, False], [True, True, False]]
    assert both.is_answer().sum(axis=1).tolist() == [2, 2]
