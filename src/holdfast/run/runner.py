"""Runs plans: one trip down, one up. Knows rows and slots, no requests, and keeps nothing between plans but the KV."""

import torch

from holdfast.core.plan import Pass, PassKind, PassResult, Plan
from holdfast.models.decoder import Decoder
from holdfast.run.batch import rows_of, sampled_rows
from holdfast.run.sampler import sample
from holdfast.run.store import PAGE_SIZE, KVStore


class Runner:
    """A decoder over a KV store."""

    def __init__(self, decoder: Decoder, store: KVStore) -> None:
        self._decoder = decoder
        self._store = store

    def run(self, plan: Plan) -> list[PassResult]:
        """The passes of a plan, in order."""
        with torch.inference_mode():
            return [self._run_pass(one) for one in plan.passes]

    def _run_pass(self, one: Pass) -> PassResult:
        # A certified pass runs the fast arithmetic at a shape whose bits are known to be the reference's.
        is_canonical = one.kind is PassKind.CANONICAL
        sampled = sampled_rows(one.spans)
        logits = self._decoder.forward(
            rows_of(one, PAGE_SIZE),
            self._store.layers,
            sampled,
            canonical=is_canonical and not one.certified,
            canonical_head=is_canonical,
        )
        if not len(sampled):
            return PassResult(tuple(() for _ in one.spans))
        return PassResult(sample(self._decoder.arithmetic, logits, one.spans))
