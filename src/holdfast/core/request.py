"""A request as the scheduler takes it: valid, tokenised, with its seed. Nothing about it changes."""

from dataclasses import dataclass
from typing import Protocol

from holdfast.core.params import SamplingParams


class AnswerText(Protocol):
    """Watches committed tokens as text. Sees every committed token exactly once, in order, and nothing else."""

    def push(self, token_id: int) -> bool:
        """Take one committed token; true if a stop string is now complete."""
        ...


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it. `request_id` counts up with arrival, and that order is the queue's."""

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_ids: frozenset[int] = frozenset()

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def max_len(self) -> int:
        """Positions the request can ever reach: prompt and answer."""
        return self.prompt_len + self.params.max_tokens
