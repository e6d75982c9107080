"""Examples of files: a prompt, an answer, and thoughts at characters of the prompt.

They become the same batches: a thought is in the chunk of the token with its character.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from holdfast.training.batch import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class ThoughtStep:
    """settled_at: the character of the prompt from which on the thought can be inferred."""

    settled_at: int
    thought: str


@dataclass(frozen=True)
class TextExample:
    prompt: str
    answer: str
    steps: tuple[ThoughtStep, ...]


def batch_texts(
    examples: Sequence[TextExample], tokenizer: "Tokenizer", chunk: int, max_thought: int, eos_id: int
) -> Batch:
    """Thoughts of one chunk are concatenated in the order of their steps and truncated to
    max_thought tokens.
    """
    rows, prompt_lens, thoughts_of = [], [], []
    for example in examples:
        prompt = tokenizer.encode(example.prompt, add_special_tokens=False)
        answer = tokenizer.encode(example.answer, add_special_tokens=False)
        rows.append([*prompt.ids, *answer.ids, eos_id])
        prompt_lens.append(len(prompt.ids))
        by_chunk: dict[int, list[int]] = {}
        for step in example.steps:
            ids = tokenizer.encode(step.thought, add_special_tokens=False).ids
            by_chunk.setdefault(_token_at(prompt.offsets, step.settled_at) // chunk, []).extend(ids)
        thoughts_of.append(by_chunk)
    num_chunks = -(-max(map(len, rows)) // chunk)
    token_ids = np.zeros((len(rows), num_chunks * chunk), dtype=np.int64)
    longest = min(max_thought, max((len(ids) for each in thoughts_of for ids in each.values()), default=1))
    thoughts = np.full((len(rows), num_chunks, max(1, longest)), -1, dtype=np.int64)
    for index, (row, by_chunk) in enumerate(zip(rows, thoughts_of, strict=True)):
        token_ids[index, : len(row)] = row
        for at, ids in by_chunk.items():
            ids = ids[:max_thought]
            thoughts[index, at, : len(ids)] = ids
    return Batch(
        token_ids,
        np.array(prompt_lens, dtype=np.int64),
        np.array([len(row) for row in rows], dtype=np.int64),
        thoughts,
    )


def _token_at(offsets: Sequence[tuple[int, int]], character: int) -> int:
    """The first token that ends after the character."""
    return next((index for index, (_, end) in enumerate(offsets) if end > character), len(offsets) - 1)
