"""What the scheduler asks of the runner, and what comes back. The two floors meet here and nowhere else.

A plan is a short list of passes, run in order. A pass is a list of spans: consecutive positions of one sequence, with
the pages that hold its KV slots. The scheduler knows no tensors and the runner knows no requests.
"""

from dataclasses import dataclass
from enum import Enum

from holdfast.core.params import SamplingParams


class PassKind(Enum):
    FAST = "fast"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides a sampled row beside its logits. One object a request, shared by all its spans.

    forbidden_ids may not be chosen while the answer is shorter than min_tokens.
    """

    params: SamplingParams
    seed: int
    prompt_len: int
    forbidden_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Rows start .. start + len(token_ids) - 1 of one sequence. Rows from sample_from on give a token each."""

    request_id: int
    start: int
    token_ids: tuple[int, ...]
    pages: tuple[int, ...]
    sample_from: int
    sampling: Sampling
    logprobs: int | None = None

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) - self.sample_from


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward of the model. A certified pass is canonical by certificate, any other canonical one by its shape."""

    kind: PassKind
    spans: tuple[Span, ...]
    padded_rows: int
    certified: bool = False

    @property
    def num_rows(self) -> int:
        return sum(span.num_rows for span in self.spans)


@dataclass(frozen=True, slots=True)
class Plan:
    passes: tuple[Pass, ...]

    def __bool__(self) -> bool:
        return bool(self.passes)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's logprob: the exact fp32 value. top holds the best (id, logprob) pairs, ties to the lowest id."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one row gave. logprob is there if the span asked for it."""

    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class PassResult:
    """The sampled rows of each span of a pass, in order."""

    samples: tuple[tuple[Sampled, ...], ...]
