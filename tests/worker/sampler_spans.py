"""Spans and logits slices for tests of the sampler, and a grammar with fixed masks."""

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampling, Span
from holdfast.core.structured_output import Constraint
from holdfast.worker.logits import LogitsSlice, Masks, batch_slices

VOCAB = 200


def span(
    tokens: Sequence[int],
    count: int = 1,
    params: SamplingParams | None = None,
    *,
    seed: int = 5,
    prompt_len: int = 4,
    forbidden: tuple[int, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] = (),
    eos: tuple[int, ...] = (),
    logprobs: int | None = None,
    with_checksums: bool = False,
    constraint: Constraint | None = None,
) -> Span:
    """A span of the last `count` tokens of a request, all sampled."""
    start = len(tokens) - count
    sampling = Sampling(params or SamplingParams(temperature=0), seed, prompt_len, forbidden, bad_words, eos)
    return Span(
        request_id=1,
        start=start,
        token_ids=tuple(tokens[start:]),
        pages=(0, 1, 2, 3),
        sample_from=0,
        sampling=sampling,
        logprobs=logprobs,
        history=tuple(tokens[:start]) if sampling.needs_history else (),
        constraint=constraint,
        with_checksums=with_checksums,
    )


def slices_of(*spans: Span, masks: Sequence[Masks] | None = None) -> list[LogitsSlice]:
    """All sampled tokens of the spans in one batch."""
    return next(batch_slices(spans, masks or [()] * len(spans), max_tokens=10**6))


def mask(*token_ids: int, vocab: int = VOCAB) -> bytes:
    """A grammar mask that allows these tokens."""
    allowed = np.zeros(vocab, np.uint8)
    allowed[list(token_ids)] = 1
    return np.packbits(allowed, bitorder="little").tobytes()


class FixedGrammar:
    """Gives the masks of a function."""

    def __init__(self, masks: Callable[[Sequence[int], int], list[bytes | None]]) -> None:
        self._masks = masks

    def commit(self, token_id: int) -> None: ...

    def restart(self) -> None: ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        return self._masks(candidates, num_masks)

    @property
    def problem(self) -> str | None:
        return None
