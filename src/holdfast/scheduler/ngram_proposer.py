"""The n-gram proposer: candidates from the request's own text. It proposes what followed the last
NGRAM tokens before.

Each token is predicted silently before it is committed. Candidates are proposed only for requests whose
predictions were right, so text without repetition costs nothing. Only committed tokens are kept here.
"""

from collections.abc import Sequence
from math import log

NGRAM = 3  # tokens that must repeat before what followed them is proposed
MAX_CANDIDATES = 31
# Time of one more token in a pass, as a share of a pass of one token; measured, see docs/benchmarks.md.
TOKEN_COST = 0.32
_DECAY = 0.8  # weight of a prediction after each newer one
_TOKEN_BITS = 31
_GRAM_MASK = (1 << NGRAM * _TOKEN_BITS) - 1


def token_share(num_tokens: int) -> float:
    """Return the time of one more token in a pass of `num_tokens`, as a share of the pass."""
    return TOKEN_COST * num_tokens / (1 + TOKEN_COST * (num_tokens - 1))


def num_worthwhile(hit_rate: float, num_tokens: int) -> int:
    """Return how many candidates are worth their time in a pass that has `num_tokens` without them. The
    k-th is accepted with probability hit_rate^k, which must be more than its share of the pass."""
    share = token_share(num_tokens)
    if hit_rate <= share:
        return 0
    return MAX_CANDIDATES if hit_rate >= 1 else min(MAX_CANDIDATES, int(log(share) / log(hit_rate)))


def is_worth_waiting(hit_rate: float, num_candidates: int) -> bool:
    """Return whether a pass with `num_candidates` should commit more than two passes without candidates:
    a request with a token in flight skips one pass before it can propose."""
    if hit_rate >= 1:
        return num_candidates > 1
    return (1 - hit_rate ** (num_candidates + 1)) / (1 - hit_rate) > 2


class NgramProposer:
    """The committed tokens of one request, and the tokens they predict. The prompt is read at first use."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._unread = token_ids
        self._ids: list[int] = []
        self._gram = 0  # the last NGRAM tokens in one number
        self._next_position: dict[int, int] = {}  # n-gram -> the position after its last occurrence
        self._match: int | None = None  # the position of the token that is predicted to come next
        self._hits = 0.5
        self._misses = 0.5

    @property
    def has_match(self) -> bool:
        """Return whether the last n-gram occurred before."""
        self._read()
        return self._match is not None

    @property
    def hit_rate(self) -> float:
        """The share of recent predictions that were right."""
        return self._hits / (self._hits + self._misses)

    def commit(self, token_id: int) -> None:
        self._read()
        match = self._match
        if match is None:
            self._append(token_id)
            return
        hit = self._ids[match] == token_id
        self._hits = self._hits * _DECAY + hit
        self._misses = self._misses * _DECAY + (not hit)
        self._append(token_id)
        if hit:
            self._match = match + 1  # continue in the run that is being repeated

    def propose(self, max_candidates: int) -> tuple[int, ...]:
        """Return the tokens that are predicted to come next, at most `max_candidates`."""
        self._read()
        if self._match is None or max_candidates < 1:
            return ()
        expected: list[int] = []
        for at in range(self._match, self._match + max_candidates):  # a run that reaches its own end repeats
            expected.append(self._ids[at] if at < len(self._ids) else expected[at - len(self._ids)])
        return tuple(expected)

    def _read(self) -> None:
        if self._unread:
            unread, self._unread = self._unread, ()
            for token_id in unread:
                self._append(token_id)

    def _append(self, token_id: int) -> None:
        ids = self._ids
        ids.append(token_id)
        self._gram = gram = ((self._gram << _TOKEN_BITS) | token_id) & _GRAM_MASK
        if len(ids) >= NGRAM:
            self._match = self._next_position.get(gram)
            self._next_position[gram] = len(ids)
