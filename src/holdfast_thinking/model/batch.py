"""The data of a training step: token ids, start of the answer, a gold thought for every chunk."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.thinking.log import find_resets

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """B texts of at most L tokens (a multiple of the chunk), K = L / c chunks, thoughts of at most
    M tokens.
    """

    token_ids: Ints  # [B, L], padded with 0
    num_prompt: Ints  # [B]
    num_tokens: Ints  # [B], prompt and answer
    thoughts: Ints  # [B, K, M], padded with -1; all -1: trivial
    num_given: Ints | None = None  # [B]: of how many first chunks the thoughts are given, not to be learned

    def __len__(self) -> int:
        return len(self.token_ids)

    def take_range(self, first: int, last: int) -> "Batch":
        """Texts first to last, without columns that all of them pad."""
        rows = slice(first, last)
        num_chunks, chunk = self.thoughts.shape[1], self.token_ids.shape[1] // self.thoughts.shape[1]
        needed = min(num_chunks, -(-int(self.num_tokens[rows].max()) // chunk))
        thoughts = self.thoughts[rows, :needed]
        longest = max(1, int((thoughts >= 0).sum(axis=2).max()))
        return Batch(
            self.token_ids[rows, : needed * chunk],
            self.num_prompt[rows],
            self.num_tokens[rows],
            thoughts[:, :, :longest],
            None if self.num_given is None else self.num_given[rows],
        )

    def take(self, order: NDArray[np.intp]) -> "Batch":
        """The texts in another order."""
        return Batch(
            self.token_ids[order],
            self.num_prompt[order],
            self.num_tokens[order],
            self.thoughts[order],
            None if self.num_given is None else self.num_given[order],
        )

    def is_answer(self) -> Bools:
        """[B, L]: the tokens of the answer."""
        positions = np.arange(self.token_ids.shape[1])
        return (positions >= self.num_prompt[:, None]) & (positions < self.num_tokens[:, None])

    def is_reset(self, reset_ids: tuple[int, ...]) -> Bools:
        """[B, K]: the chunks in which reset_ids end, in the prompt."""
        num_chunks = self.thoughts.shape[1]
        found = np.zeros((len(self), num_chunks), dtype=np.bool_)
        chunk = self.token_ids.shape[1] // num_chunks
        for row, num_prompt in enumerate(self.num_prompt):
            for at in find_resets(self.token_ids[row, :num_prompt].tolist(), reset_ids):
                found[row, at // chunk] = True
        return found

    def is_thought_about(self, while_answering: bool) -> Bools:
        """[B, K]: the complete chunks after those whose thoughts are given; without while_answering, those that
        end in the prompt."""
        num_chunks = self.thoughts.shape[1]
        ends = (np.arange(num_chunks) + 1) * (self.token_ids.shape[1] // num_chunks)
        counted: Bools = ends <= (self.num_tokens if while_answering else self.num_prompt)[:, None]
        if self.num_given is not None:
            counted &= np.arange(num_chunks) >= self.num_given[:, None]
        return counted


def join_batches(batches: list[Batch]) -> Batch:
    """Concatenate batches, padded to the longest."""
    if len(batches) == 1:
        return batches[0]
    length = max(each.token_ids.shape[1] for each in batches)
    chunks = max(each.thoughts.shape[1] for each in batches)
    longest = max(each.thoughts.shape[2] for each in batches)

    def pad(array: Ints, shape: tuple[int, ...], fill: int) -> Any:
        missing = [(0, want - have) for want, have in zip(shape, array.shape[1:], strict=True)]
        return np.pad(array, [(0, 0), *missing], constant_values=fill)

    return Batch(
        np.concatenate([pad(each.token_ids, (length,), 0) for each in batches]),
        np.concatenate([each.num_prompt for each in batches]),
        np.concatenate([each.num_tokens for each in batches]),
        np.concatenate([pad(each.thoughts, (chunks, longest), -1) for each in batches]),
        _join_given(batches),
    )


def _join_given(batches: list[Batch]) -> Ints | None:
    if all(each.num_given is None for each in batches):
        return None
    none = [np.zeros(len(each), dtype=np.int64) for each in batches]
    return np.concatenate(
        [
            zeros if each.num_given is None else each.num_given
            for each, zeros in zip(batches, none, strict=True)
        ]
    )
