"""A request: one prompt and how to answer it. It is made once and never changes.

The route or the Python call makes it (`RequestDefaults.request`). It crosses to the engine process as
it is, is checked there, and the scheduler keeps it. A request for n answers has n ids, from
`request_id` on.
"""

import secrets
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol, TypedDict, Unpack

from holdfast.core.pooling import Pooling
from holdfast.core.sampling_params import RestOfContext, SamplingParams
from holdfast.core.sent import Sent
from holdfast.core.shares import Share
from holdfast.core.structured_output import Grammar

SEED_BITS = 53  # of a random seed: every JSON parser reads such an integer exactly
_MASK = (1 << 64) - 1


class AnswerText(Protocol):
    """Reads committed tokens as text. It gets every committed token exactly once, in order, and
    nothing else."""

    def push(self, token_id: int) -> bool:
        """Append one committed token. True if a stop string is now complete."""


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it.

    request_id    counts up from 1 with arrival; requests are queued in that order. 0: it has none yet
    prompt_ids    all tokens that are given, a completion to score included
    params        with `deterministic` decided and max_tokens a number; `seed` is what the client said
    seed          of the first answer
    read_len      the length of the prompt, if the tokens after it are an answer to be scored
    pooling       the result is an embedding of the prompt
    echo_text     the beginning of the answer's text; empty: the engine decodes the prompt, if the
                  client asked for an echo
    want_receipt  the result gets a receipt
    cache_salt    separates the prefix cache: pages are shared among requests with the same salt
    share         whose share of the engine it uses
    sent          what the client has of each answer already, if an engine began them
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    read_len: int | None = None
    pooling: Pooling | None = None
    echo_text: str = ""
    want_receipt: bool = True
    cache_salt: str = ""
    share: Share = field(default=Share())
    sent: tuple[Sent, ...] = ()

    @property
    def deterministic(self) -> bool:
        return bool(self.params.deterministic)

    @property
    def ids(self) -> range:
        return range(self.request_id, self.request_id + self.params.n)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def max_len(self) -> int:
        """The largest number of positions: prompt and answer."""
        return self.prompt_len + self.params.max_tokens

    @property
    def score_from(self) -> int | None:
        """The first position whose token's logprob is asked for, if any."""
        if self.pooling is not None:
            return None
        first = None if self.params.prompt_logprobs is None else 1
        return first if self.read_len is None else self.read_len

    @property
    def num_scored(self) -> int:
        """How many tokens' logprobs are asked for beside those of the answer."""
        return 0 if self.score_from is None else self.prompt_len - self.score_from


class RequestOptions(TypedDict, total=False):
    """What may be said about a request beside its prompt and settings."""

    pooling: Pooling | None
    want_receipt: bool
    cache_salt: str
    share: Share
    sent: tuple[Sent, ...]


@dataclass(frozen=True)
class Prepared:
    """A request that the engine has checked, and what it made of it.

    eos_ids end an answer. bad_words are token sequences that may not be completed. grammars has one
    for each answer, if the output is structured.
    """

    request: Request
    eos_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammars: tuple[Grammar, ...] = field(default=(), compare=False, repr=False)

    @property
    def request_id(self) -> int:
        return self.request.request_id


@dataclass(frozen=True)
class RequestDefaults:
    """What an engine assumes where a request says nothing.

    seed is for requests without one. None: a random seed, or 0 for greedy decoding, which needs none.
    """

    deterministic: bool = False
    seed: int | None = None

    def request(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        *,
        max_model_len: int,
        completion_ids: Sequence[int] | None = None,
        echo_text: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Make a request: decide `deterministic`, the seed and max_tokens. It has no id and is not
        checked yet.

        completion_ids: score these tokens after the prompt. echo_text: the prompt's text, where it is
        known.
        """
        ids = tuple(prompt_ids)
        read_len = None if completion_ids is None else len(ids)
        ids += tuple(completion_ids or ())
        echo = echo_text if params.echo and completion_ids is None else None
        decided = self.decide(params, len(ids), max_model_len)
        return Request(0, ids, decided, self.seed_of(params), read_len, echo_text=echo or "", **options)

    def is_deterministic(self, asked: bool | None) -> bool:
        return self.deterministic if asked is None else asked

    def decide(self, params: SamplingParams, prompt_len: int, max_model_len: int) -> SamplingParams:
        """Return the parameters with `deterministic` and max_tokens decided."""
        if params.deterministic is None:
            params = copy(params)  # `replace` would check every value again
            object.__setattr__(params, "deterministic", self.deterministic)
        if isinstance(params.max_tokens, RestOfContext):
            params = replace(params, max_tokens=max(1, max_model_len - prompt_len))
        return params

    def seed_of(self, params: SamplingParams) -> int:
        """Return the request's seed, else the engine's."""
        if params.seed is not None:
            return params.seed
        if self.seed is not None:
            return self.seed
        return 0 if params.greedy else secrets.randbits(SEED_BITS)


NO_DEFAULTS = RequestDefaults()


def branch_seed(seed: int, index: int) -> int:
    """Return the seed of the index-th answer. The first has the request's own."""
    if index == 0:
        return seed
    value = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
