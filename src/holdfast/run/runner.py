"""Runs plans: one trip down, one up. Knows rows and slots, no requests, and keeps nothing between plans but the KV."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from holdfast.core.plan import Pass, PassKind, PassResult, Plan, Sampled, Span, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.run.batch import given_rows, rows_of, sampled_rows
from holdfast.run.check import find_mismatch
from holdfast.run.logprobs import logprobs_of
from holdfast.run.masks import MaskWorker
from holdfast.run.parts import MAX_SLICE_ROWS, Masks, slice_parts
from holdfast.run.sampler import sample
from holdfast.run.store import PAGE_SIZE, KVStore


class Runner:
    """A decoder over a KV store."""

    def __init__(self, decoder: Decoder, store: KVStore) -> None:
        self._decoder = decoder
        self._store = store
        self._mask_worker = MaskWorker()

    def run(self, plan: Plan) -> list[PassResult]:
        """The passes of a plan, in order. When it returns or raises, nobody uses the plan's grammars any more."""
        with torch.inference_mode():
            return [self._run_pass(one) for one in plan.passes]

    def _run_pass(self, one: Pass) -> PassResult:
        if one.kind is PassKind.CHECK:
            return PassResult(((),), mismatch=find_mismatch(self._decoder, self._store.layers, one))
        # A certified pass runs the fast arithmetic at a shape whose bits are known to be the reference's.
        canonical = one.kind is PassKind.CANONICAL
        given, sampled = given_rows(one.spans), sampled_rows(one.spans)
        wanted = torch.tensor(given + sampled, dtype=torch.int64)
        with self._mask_worker.working_on(one.spans) as masks:
            rows = rows_of(one, PAGE_SIZE)
            hidden = self._decoder.forward(
                rows, self._store.layers, wanted, canonical=canonical and not one.certified
            )  # [given and sampled, hidden]
            scores = self._score(hidden[: len(given)], one.spans, canonical) if given else ()
            samples = self._sample(hidden[len(given) :], one.spans, masks(), canonical)
        return PassResult(samples, scores)

    def _sample(
        self, hidden: Tensor, spans: Sequence[Span], masks: Sequence[Masks], canonical: bool
    ) -> tuple[tuple[Sampled, ...], ...]:
        """The sampled rows of each span."""
        found: list[Sampled] = []
        for parts in slice_parts(spans, masks, MAX_SLICE_ROWS):
            num_rows = sum(part.num_rows for part in parts)
            logits = self._decoder.logits(hidden[len(found) : len(found) + num_rows], canonical=canonical)
            found += sample(self._decoder.arithmetic, logits, parts)
        left = iter(found)
        return tuple(tuple(islice(left, span.num_sampled)) for span in spans)

    def _score(
        self, hidden: Tensor, spans: Sequence[Span], canonical: bool
    ) -> tuple[tuple[TokenLogprob, ...], ...]:
        """The logprobs of each span's given tokens."""
        tokens = [token_id for span in spans for token_id in span.given]
        counts = [span.sampling.params.prompt_logprobs or 0 for span in spans for _ in span.given]
        found: list[TokenLogprob] = []
        for some in torch.split(hidden, MAX_SLICE_ROWS):
            logits = self._decoder.logits(some, canonical=canonical)  # fp32 [slice, vocab]
            at = slice(len(found), len(found) + len(some))
            found += logprobs_of(self._decoder.arithmetic, logits, tokens[at], counts[at])
        left = iter(found)
        return tuple(tuple(islice(left, len(span.given))) for span in spans)
