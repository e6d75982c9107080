"""Fault injection into the n-gram proposer: it proposes the true continuation with random tokens in
between.

Every request then proposes candidates, so that windows are accepted and rejected in `auto`, too.
The faults are inserted after the grammar filter: verification must reject candidates that the
grammar does not allow.
"""

import random
from collections.abc import Sequence

import pytest

from holdfast.core.request import branch_seed
from holdfast.core.results import Result
from holdfast.scheduler.ngram_proposer import NgramProposer
from holdfast.scheduler.request_state import RequestState

MAX_CANDIDATES = 8


def inject_ngram_faults(
    patch: pytest.MonkeyPatch, vocab_size: int, chance: float, *, truths: Sequence[Result] = (), seed: int = 0
) -> None:
    """Propose the tokens of `truths` where the request is one of them, else random ones; each is
    wrong with this chance.
    """
    rng = random.Random(seed)
    look_up = RequestState.propose
    known = {
        (truth.prompt_token_ids, branch_seed(truth.seed, index)): choice.token_ids
        for truth in truths
        for index, choice in enumerate(truth.choices)
    }

    def propose_with_faults(seq: RequestState, most: int) -> None:
        look_up(seq, most)
        start, request = seq.tokens.num_output, seq.request
        room = min(most, rng.randint(1, MAX_CANDIDATES), request.params.max_tokens - start - 1)
        found = list(known.get((request.prompt_ids, seq.sampling.seed), ())[start : start + max(0, room)])
        found = [rng.randrange(vocab_size) if rng.random() < chance else token_id for token_id in found]
        found += [rng.randrange(vocab_size) for _ in range(room - len(found))]
        added = len(found) - seq.tokens.drop_candidates()
        for token_id in found:
            seq.tokens.propose(token_id)
        seq.has_draft = bool(found)
        seq.stats.candidates += added
        seq.stats.looked_up += added

    patch.setattr(RequestState, "propose", propose_with_faults)
    patch.setattr(NgramProposer, "hit_rate", property(lambda self: 0.95))
