"""What the scheduler asks of the model runner, and what it gets back. They meet only here.

A step plan is a short list of passes, run in order. A pass is one forward of the model over a batch
of spans. A span is a run of consecutive tokens of one request, with the pages of its KV. The
scheduler knows no tensors, the runner knows no requests.

    StepPlan
    +-- Pass FAST        5 tokens
    |   +-- Span  request 3, positions 40..40    a decode token
    |   +-- Span  request 4, positions 17..17    a candidate, if request 4 is deterministic
    |   +-- Span  request 9, positions 0..2      a chunk of an ordinary prompt
    +-- Pass CANONICAL   14 tokens, padded to 16
        +-- Span  request 7, positions 0..9      a chunk of a deterministic prompt
        +-- Span  request 2, positions 63..66    a window: one committed token, three candidates

A token of a span is an id, or UNKNOWN_TOKEN: the token that an earlier pass samples for this
position, in this plan or in one that is still in flight. So a plan can be made before the results
of the last one are read. The runner keeps sampled tokens on the device, in a ring for each request
index:

    a sampled token at position p writes           ring[request_index, (p + 1) % SAMPLED_RING_SIZE]
    an UNKNOWN_TOKEN at position q reads           ring[request_index, q % SAMPLED_RING_SIZE]
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar, dataclass_transform

from holdfast.core.pooling import HiddenStates
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import Constraint

T = TypeVar("T")

NO_TOKEN = -1  # sampled where there is none: the request allows none, or no logit is a number
UNKNOWN_TOKEN = -1  # an input token whose id is only on the device
SAMPLED_RING_SIZE = 64  # sampled tokens that the device keeps of each request


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[T]) -> type[T]:
    """Decorate a class of which a step makes thousands: a hashable dataclass with slots.

    A frozen dataclass sets each field through a call, so making one takes six times as long. These are
    frozen for the type checker only: do not change an instance after it is made.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


class PassKind(Enum):
    FAST = "fast"
    CANONICAL = "canonical"
    CHECK = "check"  # tokens of a certified pass again, at the reference's batch size


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides a sampled token besides its logits. All spans of a request share one object.

    suppressed_ids may not be sampled while the answer is shorter than min_tokens. bad_words are
    token sequences that may never be completed. eos_ids end an answer; a grammar allows them where
    the answer is complete. changes_logits: logits are changed before a token is sampled, even
    without a grammar.
    """

    params: SamplingParams
    seed: int
    prompt_len: int
    suppressed_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    eos_ids: tuple[int, ...] = ()
    changes_logits: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        has_lists = params.logit_bias or params.bad_token_ids or params.allowed_token_ids is not None
        changes_logits = bool(self.suppressed_ids or self.bad_words or has_lists or params.penalises)
        object.__setattr__(self, "changes_logits", changes_logits)

    @property
    def needs_history(self) -> bool:
        """Return whether sampling depends on the ids of the tokens before."""
        return self.params.penalises or bool(self.bad_words)


@fast_dataclass
class SpanState:
    """Where a span finds and leaves the recurrent state of its request, as in `RecurrentBatch`.

    Before the pass the slot becomes a copy of slot `load`, then slot `snapshot` a copy of it; after the pass
    slot `save` becomes one. -1: none.
    """

    slot: int
    checkpoint: int
    store: int
    load: int = -1
    snapshot: int = -1
    save: int = -1


@fast_dataclass
class Span:
    """Tokens at positions start .. start + len(token_ids) - 1 of one request. Those from
    sample_from on are sampled after.

    scored_ids are known tokens whose logprobs are asked for: one after each of the len(scored_ids)
    tokens before sample_from. history is the tokens before start, if `Sampling.needs_history`; it is
    empty if only the device may know them, which then reads them beside the KV.
    with_checksums: report checksums of the sampled tokens' logits. request_index is the request's
    ring of sampled tokens, -1 if no later span reads it. extra is what the pass takes for granted, for
    the worker's `PassExtension`. num_pooled: the hidden states of so many tokens before sample_from are
    asked for. num_cached: the KV of so many of the first tokens is in their pages, which others may read
    too. It is not written again; these tokens are computed for their logits alone. state: in a model with
    recurrent layers.
    """

    request_id: int
    start: int
    token_ids: tuple[int, ...]
    pages: tuple[int, ...]
    sample_from: int
    sampling: Sampling
    logprobs: int | None = None
    scored_ids: tuple[int, ...] = ()
    history: tuple[int, ...] = ()
    constraint: Constraint | None = None
    with_checksums: bool = False
    request_index: int = -1
    extra: object = None
    num_pooled: int = 0
    num_cached: int = 0
    state: SpanState | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) - self.sample_from

    @property
    def num_scored(self) -> int:
        return len(self.scored_ids)

    def head(self, num_tokens: int) -> "Span":
        """Return the span of its first num_tokens tokens."""
        if num_tokens == len(self.token_ids):
            return self
        num_cut = max(0, self.sample_from - num_tokens)
        return replace(
            self,
            token_ids=self.token_ids[:num_tokens],
            sample_from=min(self.sample_from, num_tokens),
            scored_ids=self.scored_ids[: max(0, self.num_scored - num_cut)],
            num_pooled=max(0, self.num_pooled - num_cut),
            num_cached=min(self.num_cached, num_tokens),
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward of the model. A canonical pass is canonical by its certificate if certified,
    otherwise by its shape.

    larger_sizes: it may be padded to these numbers of tokens, too, with the same bits.

    A check has one span whose last pages are scratch pages. Its KV is compared with that in
    original_pages, and the logits of its sampled tokens with logits_checksums.
    """

    kind: PassKind
    spans: tuple[Span, ...]
    num_tokens_padded: int
    certified: bool = False
    larger_sizes: tuple[int, ...] = ()
    original_pages: tuple[int, ...] = ()
    logits_checksums: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class StepPlan:
    passes: tuple[Pass, ...]

    def __bool__(self) -> bool:
        return bool(self.passes)


@fast_dataclass
class TokenLogprob:
    """A token's logprob, the exact fp32 value. top holds the most likely (id, logprob) pairs, or those of
    the token and of `SamplingParams.logprob_token_ids`: the most likely first, ties to the lowest id."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@fast_dataclass
class Sampled:
    """One sampled token, or NO_TOKEN. logprob and logits_checksum are set if the span asked for
    them."""

    token_id: int
    logprob: TokenLogprob | None = None
    logits_checksum: int | None = None


@dataclass(frozen=True, slots=True)
class PassResult:
    """For each span of a pass, in order: its sampled tokens; the logprobs of its scored_ids, if any
    span has some; what the worker's `PassExtension` found, if there is one; the hidden states to pool,
    if any span has some. mismatch: where a check found different bits."""

    samples: tuple[tuple[Sampled, ...], ...]
    scores: tuple[tuple[TokenLogprob, ...], ...] = ()
    extra: tuple[object, ...] = ()
    mismatch: str | None = None
    pooled: tuple[HiddenStates, ...] = ()
