"""Look-ups that lie: what a sequence is about to say, with any token at all put in here and there.

Every sequence then proposes something, as if its look-up had never been wrong, so that windows stand and fall in `auto`,
too. What is wrong is put in behind the grammar's own sieve: a window must bear candidates no grammar knows.
"""

import random
from collections.abc import Sequence

import pytest

from holdfast.core.request import branch_seed
from holdfast.core.results import Result
from holdfast.scheduler.ngram_proposer import NgramProposer
from holdfast.scheduler.request_state import RequestState

MOST = 8  # candidates at once


def lie_in_lookups(
    patch: pytest.MonkeyPatch, vocab_size: int, chance: float, *, truths: Sequence[Result] = (), seed: int = 0
) -> None:
    """Candidates are those of the truths, where the request is one of theirs, or else any; each is wrong with this chance."""
    rng = random.Random(seed)
    look_up = RequestState.look_up
    known = {
        (truth.prompt_token_ids, branch_seed(truth.seed, index)): choice.token_ids
        for truth in truths
        for index, choice in enumerate(truth.choices)
    }

    def look_up_and_lie(seq: RequestState, most: int) -> None:
        look_up(seq, most)
        start, request = seq.tokens.num_output, seq.request
        room = min(most, rng.randint(1, MOST), request.params.max_tokens - start - 1)
        found = list(known.get((request.prompt_ids, request.seed), ())[start : start + max(0, room)])
        found = [rng.randrange(vocab_size) if rng.random() < chance else token_id for token_id in found]
        found += [rng.randrange(vocab_size) for _ in range(room - len(found))]
        added = len(found) - seq.tokens.drop_candidates()
        for token_id in found:
            seq.tokens.propose(token_id)
        seq._looked_up = bool(found)
        seq.stats.candidates += added
        seq.stats.looked_up += added

    patch.setattr(RequestState, "look_up", look_up_and_lie)
    patch.setattr(NgramProposer, "chance", property(lambda lookup: 0.95))
