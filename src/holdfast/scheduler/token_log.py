"""A sequence's tokens: the prompt, what is committed behind it, and the candidates behind that.

    position   0 ........ prompt_len ........ committed_len ........ total_len
               | prompt   | committed answer  | candidates           |

Candidates are only ever appended, and dropped all at once when their window is judged: a verdict commits tokens
anew, it does not relabel candidates.
"""

from collections.abc import Iterable, Sequence


class TokenLog:
    """Owned by one sequence. Positions count from the first prompt token."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids = list(prompt_ids)
        self.prompt_len = len(self._ids)
        self.committed_len = self.prompt_len

    @property
    def total_len(self) -> int:
        return len(self._ids)

    @property
    def num_candidates(self) -> int:
        return len(self._ids) - self.committed_len

    @property
    def num_output(self) -> int:
        return self.committed_len - self.prompt_len

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(self._ids[self.prompt_len : self.committed_len])

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(self._ids[self.committed_len :])

    @property
    def last(self) -> int:
        """The last token, candidate or not."""
        return self._ids[-1]

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens at positions start .. stop - 1, candidates included."""
        return tuple(self._ids[start:stop])

    def propose(self, token_id: int) -> None:
        self._ids.append(token_id)

    def drop_candidates(self) -> int:
        """Forget every candidate; how many there were."""
        dropped = self.num_candidates
        if dropped:
            del self._ids[self.committed_len :]
        return dropped

    def forget_output(self) -> None:
        """Back to the prompt."""
        assert self.num_candidates == 0
        del self._ids[self.prompt_len :]
        self.committed_len = self.prompt_len

    def commit(self, token_ids: Iterable[int]) -> None:
        assert self.num_candidates == 0, "candidates must be judged before anything is committed behind them"
        self._ids.extend(token_ids)
        self.committed_len = len(self._ids)

    def commit_one(self, token_id: int) -> None:
        ids = self._ids
        assert len(ids) == self.committed_len, (
            "candidates must be judged before anything is committed behind them"
        )
        ids.append(token_id)
        self.committed_len += 1
