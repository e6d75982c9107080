"""What the scheduler asks of the runner, and what comes back. The two floors meet here and nowhere else.

A plan is a short list of passes, run in order. A pass is a list of spans: consecutive positions of one sequence, with
the pages that hold its KV slots. The scheduler knows no tensors and the runner knows no requests.

A row's token is an id, or UNKNOWN_TOKEN: what an earlier pass, of this plan or of one that is still running, sampled for this
position of this sequence. So planning needs not wait for the device. What is sampled is kept by lane and position:

    a sampled row at position p of lane l writes   lanes[l, (p + 1) % SAMPLED_RING_SIZE]
    a row at position q with an UNKNOWN_TOKEN token reads lanes[l, q % SAMPLED_RING_SIZE]
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter

from holdfast.core.grammar import Constraint
from holdfast.core.record_class import record_class
from holdfast.core.sampling_params import SamplingParams

ThoughtIds = tuple[int, ...]  # the tokens of a thought, its end not among them; none: the trivial thought

NO_TOKEN = -1  # what a row gives whose request allows nothing to come next
UNKNOWN_TOKEN = -1  # the token of a row whose id only the device knows so far
SAMPLED_RING_SIZE = 64  # positions of a sequence whose sampled tokens are kept


class PassKind(Enum):
    FAST = "fast"
    CANONICAL = "canonical"
    CHECK = "check"  # rows a certified pass gave, again at the reference's shape, into scratch pages


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides a sampled row beside its logits. One object a request, shared by all its spans.

    suppressed_ids may not be chosen while the answer is shorter than min_tokens. bad_words are sequences of tokens none of
    which may ever be completed. eos_ids end an answer by themselves, where its form is complete. changes_logits: logits are
    changed before a token is chosen, even without a form; is_plain_greedy: they are not, and the best is chosen.
    """

    params: SamplingParams
    seed: int
    prompt_len: int
    suppressed_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    eos_ids: tuple[int, ...] = ()
    changes_logits: bool = field(init=False)
    is_plain_greedy: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        listed = params.logit_bias or params.bad_token_ids or params.allowed_token_ids is not None
        changes_logits = bool(self.suppressed_ids or self.bad_words or listed or params.penalises)
        object.__setattr__(self, "changes_logits", changes_logits)
        object.__setattr__(self, "is_plain_greedy", params.temperature == 0 and not changes_logits)

    @property
    def needs_history(self) -> bool:
        """Whether a row must know the tokens before it."""
        return self.params.penalises or bool(self.bad_words)


@dataclass(frozen=True, slots=True)
class ThinkRule:
    """Which chunks of a request are thought about, in a model that thinks. One object a request, shared by all its spans.

    until: only chunks that end there or before, None: all. forced: what is thought behind a chunk whatever T would write,
    as (chunk, thought), by chunk.
    """

    until: int | None = None
    forced: tuple[tuple[int, ThoughtIds], ...] = ()

    def thinks(self, chunk: int, chunk_len: int) -> bool:
        return self.until is None or (chunk + 1) * chunk_len <= self.until

    def forced_on(self, chunk: int) -> ThoughtIds | None:
        at = bisect_left(self.forced, chunk, key=itemgetter(0))
        found = at < len(self.forced) and self.forced[at][0] == chunk
        return self.forced[at][1] if found else None


@record_class
class Span:
    """Rows start .. start + len(token_ids) - 1 of one sequence. Rows from sample_from on give a token each.

    given are known tokens whose logprobs are asked for: each stands behind one of the len(given) rows before sample_from.
    history is what stands before start, for whom it matters (`Sampling.needs_history`); with watched, the logits' bits are
    reported as well. lane is the sequence's place in the table of sampled tokens, -1 where nobody will ask for them there.
    With a rule the rows are thought about: guesses are what is taken to be thought behind each chunk that ends among the rows
    with more rows behind it.
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
    rule: ThinkRule | None = None
    guesses: tuple[ThoughtIds, ...] = ()

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
        """Its first rows alone."""
        num_scored = max(0, min(self.num_scored, num_tokens - self.sample_from + self.num_scored))
        return replace(
            self,
            token_ids=self.token_ids[:num_tokens],
            sample_from=min(self.sample_from, num_tokens),
            scored_ids=self.scored_ids[:num_scored],
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward of the model. A certified pass is canonical by certificate, any other canonical one by its shape.

    A check has one span, whose last pages are scratch: its rows' KV is compared with that in `originals`, and its
    sampled rows' logits with `logits_checksum`.
    """

    kind: PassKind
    spans: tuple[Span, ...]
    num_tokens_padded: int
    certified: bool = False
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


@record_class
class TokenLogprob:
    """A token's logprob: the exact fp32 value. top holds the best (id, logprob) pairs, ties to the lowest id."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@record_class
class Sampled:
    """One sampled token, or NO_TOKEN. logprob and logits_checksum are set if the span asked for them."""

    token_id: int
    logprob: TokenLogprob | None = None
    logits_checksum: int | None = None


@dataclass(frozen=True, slots=True)
class PassResult:
    """The sampled rows of each span of a pass, in order; the logprobs of the tokens it was given, a tuple each, if any span
    was given some; what is thought behind each chunk that ends among a span's rows, if the model thinks; and for a check,
    where the bits differ.
    """

    samples: tuple[tuple[Sampled, ...], ...]
    scores: tuple[tuple[TokenLogprob, ...], ...] = ()
    thoughts: tuple[tuple[ThoughtIds, ...], ...] = ()
    mismatch: str | None = None
