"""Examples that are texts, not pieces: a prompt, an answer, and steps at places in the prompt.

They become the same batches: a step's thought lies in the chunk of the token that holds the character it is settled at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from holdfast.training.batch import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Step:
    """settled_at: the character of the prompt with which the thought can be inferred."""

    settled_at: int
    thought: str


@dataclass(frozen=True)
class TextExample:
    prompt: str
    answer: str
    steps: tuple[Step, ...]


def batch_texts(
    examples: Sequence[TextExample], tokenizer: "Tokenizer", chunk: int, max_thought: int, eos_id: int
) -> Batch:
    """Thoughts in the order of their steps, those of one chunk behind one another and cut to max_thought tokens."""
    rows, prompt_lens, told = [], [], []
    for example in examples:
        prompt = tokenizer.encode(example.prompt, add_special_tokens=False)
        answer = tokenizer.encode(example.answer, add_special_tokens=False)
        rows.append([*prompt.ids, *answer.ids, eos_id])
        prompt_lens.append(len(prompt.ids))
        by_chunk: dict[int, list[int]] = {}
        for step in example.steps:
            ids = tokenizer.encode(step.thought, add_special_tokens=False).ids
            by_chunk.setdefault(_token_at(prompt.offsets, step.settled_at) // chunk, []).extend(ids)
        told.append(by_chunk)
    num_chunks = -(-max(map(len, rows)) // chunk)
    token_ids = np.zeros((len(rows), num_chunks * chunk), dtype=np.int64)
    longest = min(max_thought, max((len(ids) for each in told for ids in each.values()), default=1))
    thoughts = np.full((len(rows), num_chunks, max(1, longest)), -1, dtype=np.int64)
    for index, (row, by_chunk) in enumerate(zip(rows, told, strict=True)):
        token_ids[index, : len(row)] = row
        for at, ids in by_chunk.items():
            kept = ids[:max_thought]
            thoughts[index, at, : len(kept)] = kept
    return Batch(
        token_ids,
        np.array(prompt_lens, dtype=np.int64),
        np.array([len(row) for row in rows], dtype=np.int64),
        thoughts,
    )


def _token_at(offsets: Sequence[tuple[int, int]], character: int) -> int:
    """The first token that ends behind the character."""
    return next((index for index, (_, end) in enumerate(offsets) if end > character), len(offsets) - 1)
