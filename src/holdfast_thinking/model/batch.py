"""The data of a training step: token ids, start of the answer, a gold thought for every chunk."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.thinking.config import ThinkingConfig
from holdfast.thinking.log import find_resets, find_settled

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """B texts of at most L tokens (a multiple of the chunk), K = L / c chunks, thoughts of at most M."""

    token_ids: Ints  # [B, L], padded with 0
    num_prompt: Ints  # [B]
    num_tokens: Ints  # [B], prompt and answer
    thoughts: Ints  # [B, K, M], padded with -1; all -1: trivial
    num_given: Ints | None = None  # [B]: of how many first chunks the thoughts are given, not to be learned

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, chosen: "slice | NDArray[np.intp]") -> "Batch":
        return Batch(
            self.token_ids[chosen],
            self.num_prompt[chosen],
            self.num_tokens[chosen],
            self.thoughts[chosen],
            None if self.num_given is None else self.num_given[chosen],
        )

    def take_range(self, first: int, last: int) -> "Batch":
        """Take texts first to last, without columns that all of them pad."""
        batch, chunk = self.take(slice(first, last)), self.token_ids.shape[1] // self.thoughts.shape[1]
        needed = min(self.thoughts.shape[1], -(-int(batch.num_tokens.max()) // chunk))
        thoughts = batch.thoughts[:, :needed]
        longest = max(1, int((thoughts >= 0).sum(axis=2).max()))
        return replace(
            batch, token_ids=batch.token_ids[:, : needed * chunk], thoughts=thoughts[:, :, :longest]
        )

    def is_answer(self) -> Bools:
        """[B, L]: the tokens of the answer."""
        positions = np.arange(self.token_ids.shape[1])
        return (positions >= self.num_prompt[:, None]) & (positions < self.num_tokens[:, None])

    def is_reset(self, thinking: ThinkingConfig) -> Bools:
        """[B, K]: the chunks in which reset_ids end, in the prompt, before they are closed."""
        found = np.zeros(self.thoughts.shape[:2], dtype=np.bool_)
        for row, last in enumerate(self._settled(thinking)):
            prompt = self.token_ids[row, : last or self.num_prompt[row]].tolist()
            for at in find_resets(prompt, thinking.reset_ids):
                found[row, at // thinking.chunk] = True
        return found

    def ends(self, thinking: ThinkingConfig) -> Ints:
        """[B, K]: after how many tokens each chunk is closed."""
        ends = np.tile((np.arange(self.thoughts.shape[1]) + 1) * thinking.chunk, (len(self), 1))
        for row, last in enumerate(self._settled(thinking)):
            if last is not None:
                ends[row, last // thinking.chunk] = last
        return ends

    def _settled(self, thinking: ThinkingConfig) -> list[int | None]:
        """[B]: the token of the prompt before which its last chunk is closed."""
        if not thinking.settle:
            return [None] * len(self)
        return [find_settled(num_prompt, thinking.chunk) for num_prompt in self.num_prompt.tolist()]

    def is_thought_about(self, thinking: ThinkingConfig) -> Bools:
        """[B, K]: the closed chunks after those whose thoughts are given; without while_answering, those that
        are closed in the prompt."""
        last = self.num_tokens if thinking.while_answering else self.num_prompt
        counted: Bools = self.ends(thinking) <= last[:, None]
        if self.num_given is not None:
            counted &= np.arange(self.thoughts.shape[1]) >= self.num_given[:, None]
        return counted
