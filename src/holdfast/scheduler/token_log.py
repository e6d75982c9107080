"""The tokens of one request: the prompt, the committed tokens after it, the candidates after those.

    position   0 ........ prompt_len ........ committed_len ........ total_len
               | prompt   | committed answer  | candidates           |

Candidates are only appended, and all dropped when their window is verified, which commits anew.
"""

from collections.abc import Sequence


class TokenLog:
    """The tokens by position, counted from the first prompt token."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids = list(prompt_ids)
        self.prompt_len = len(self._ids)
        self.committed_len = self.prompt_len
        self.num_candidates = 0

    @property
    def total_len(self) -> int:
        return len(self._ids)

    @property
    def num_output(self) -> int:
        return self.committed_len - self.prompt_len

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(self._ids[self.committed_len :])

    @property
    def last(self) -> int:
        """The last token, committed or candidate."""
        return self._ids[-1]

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self._ids[start:stop])

    def propose(self, token_id: int) -> None:
        self._ids.append(token_id)
        self.num_candidates += 1

    def commit(self, token_id: int) -> None:
        assert not self.num_candidates, "candidates must be verified before a token is committed"
        self._ids.append(token_id)
        self.committed_len += 1

    def drop_candidates(self) -> int:
        """Return how many there were."""
        num_dropped = self.num_candidates
        if num_dropped:
            del self._ids[self.committed_len :]
            self.num_candidates = 0
        return num_dropped

    def drop_output(self) -> None:
        """Go back to the prompt."""
        assert self.num_candidates == 0
        del self._ids[self.prompt_len :]
        self.committed_len = self.prompt_len
