"""Parity texts, checked by a parser that does not share their code."""

import re

import pytest

from holdfast_thinking.tasks.parity import Parity
from support.task_texts import chunk_texts, decode_texts, draw_batch

CHUNK = 8
# A name, then whether it flips; what stands before the verb is a capitalised word.
EVENT = re.compile(r"doesn't flip|does not flip|leaves the coin alone|flips|turns the coin over")


def _events(prompt: str) -> tuple[int, list[tuple[int, bool]]]:
    """The first state, and (where it is settled, whether it is a flip) of every event."""
    start = re.search(r"(?:state is|shows|coin is|starts as) (heads|tails)\.", prompt)
    assert start is not None, prompt
    told = prompt[: prompt.rindex(" What" if " What" in prompt else " Does")]
    found = [
        (each.end(), each[0].startswith(("flips", "turns"))) for each in EVENT.finditer(told, start.end())
    ]
    return int(start[1] == "tails"), found


@pytest.mark.parametrize("chunk", [4, 8])
def test_parity_answers_and_thoughts_are_right(chunk: int) -> None:
    batch, tokenizer = draw_batch(Parity(), 300, 1, 9, chunk=chunk)
    starts = set()
    for row, (prompt, answer) in enumerate(decode_texts(batch, tokenizer)):
        state, events = _events(prompt)
        expected: dict[int, str] = {}
        offsets = tokenizer.encode(prompt).offsets
        assert 1 <= len(events) <= 9, prompt
        for end, is_flip in events:
            state ^= is_flip
            token = next(i for i, (_, stop) in enumerate(offsets) if stop >= end)
            starts.add(token % chunk)
            expected[token // chunk] = expected.get(token // chunk, "") + (" heads", " tails")[state]
        assert answer == (" heads.", " tails.")[state]
        assert chunk_texts(batch, tokenizer, row) == expected, prompt
    assert starts == set(range(chunk))  # every alignment occurs


def test_chain_of_thought_restates_every_event() -> None:
    batch, tokenizer = draw_batch(Parity(), 100, 1, 6, form="cot")
    for row, (prompt, answer) in enumerate(decode_texts(batch, tokenizer)):
        state, events = _events(prompt)
        expected = []
        for _, is_flip in events:
            state ^= is_flip
            expected.append(("flips" if is_flip else "doesn't flip", ("heads", "tails")[state]))
        assert re.findall(r" \w+ (flips|doesn't flip): (heads|tails)\.", answer) == expected
        assert answer.endswith(f" So {expected[-1][1]}.")
        assert int(batch.num_tokens[row] - batch.num_prompt[row]) >= 4 * len(events)
