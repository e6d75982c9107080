"""A request as the scheduler takes it: valid, tokenised, with a seed. It never changes.

A client's request for n answers becomes n of these, which differ in id, seed and index.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.core.grammar import Grammar
from holdfast.core.pooling import Pooling
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent_answer import SentChoice

_MASK = (1 << 64) - 1


class AnswerText(Protocol):
    """Reads committed tokens as text. It gets every committed token exactly once, in order, and
    nothing else."""

    def push(self, token_id: int) -> bool:
        """Append one committed token. True if a stop string is now complete."""
        ...


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it. `request_id` counts up with arrival, and requests are queued
    in that order.

    score_from is the first position whose token's logprob is asked for, if any. bad_words are token
    sequences that may not be completed. echo_text is the beginning of the answer's text. grammars has
    one for each answer, if the output is structured. read_len is the length of the prompt if the tokens
    after it are an answer to be scored. want_receipt: the result gets a receipt. cache_salt separates
    the prefix cache: pages are shared among requests with the same salt. tenant is an opaque name:
    tenants get equal shares of the engine while it is busy. max_running is the number of requests of
    this tenant that may run at once.
    pooling: the result is an embedding of the prompt. sent is what the client has of each answer
    already, if another engine began it.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_ids: frozenset[int] = frozenset()
    index: int = 0
    score_from: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    echo_text: str = ""
    read_len: int | None = None
    want_receipt: bool = True
    cache_salt: str = ""
    tenant: str = ""
    max_running: int | None = None
    pooling: Pooling | None = None
    sent: tuple[SentChoice, ...] = ()
    grammars: tuple[Grammar, ...] = field(default=(), compare=False, repr=False)

    @property
    def deterministic(self) -> bool:
        """The engine decided it where the client said nothing, see `RequestDefaults`."""
        return bool(self.params.deterministic)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def max_len(self) -> int:
        """The largest number of positions: prompt and answer."""
        return self.prompt_len + self.params.max_tokens

    def branches(self) -> "tuple[Request, ...]":
        """One request for each of the n answers, with consecutive ids. The first is this request
        itself."""
        return tuple(
            replace(
                self,
                request_id=self.request_id + index,
                seed=branch_seed(self.seed, index),
                index=index,
                score_from=None if index else self.score_from,
                sent=self.sent[index : index + 1],
            )
            for index in range(self.params.n)
        )


def branch_seed(seed: int, index: int) -> int:
    """The seed of the index-th answer. The first has the request's own."""
    if index == 0:
        return seed
    value = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
