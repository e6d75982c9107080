"""The running sum of the hidden states of one request that asks for an embedding.

    position    0 ......... first ........... pooled_len ........... prompt_len
    state       not needed  | in the sum      | still needed         |

A state is added once. A position that is recomputed after preemption is not added again, and
positions from pooled_len on never come from the prefix cache. A restart begins a new sum.
"""

from array import array
from collections.abc import Iterable

from holdfast.core.pooling import HiddenStates, Pooling
from holdfast.core.step_plan import Span


class PooledPrompt:
    """What is pooled so far. `embedding` is set once the whole prompt is."""

    def __init__(self, pooling: Pooling, prompt_len: int) -> None:
        self._pooling = pooling
        self._prompt_len = prompt_len
        self._first = pooling.first_position(prompt_len)
        self.restart()

    def restart(self) -> None:
        self.pooled_len = self._first
        self.embedding: bytes | None = None
        self._total: array[float] | None = None

    @property
    def is_complete(self) -> bool:
        return self.pooled_len == self._prompt_len

    def num_pooled(self, start: int, stop: int, in_flight: Iterable[Span]) -> int:
        """How many of the last tokens of positions start .. stop - 1 are still to be pooled."""
        pooled_len = self.pooled_len + sum(span.num_pooled for span in in_flight)
        return max(0, stop - max(start, pooled_len))

    def add(self, states: HiddenStates, num_states: int) -> None:
        """Add the states of the next positions."""
        self._total = states.add_to(self._total, num_states)
        self.pooled_len += num_states
        if self.is_complete:
            self.embedding = states.finish(self._total, self._prompt_len - self._first, self._pooling)
