"""Prompt look-up: what followed the last few tokens when they stood in this sequence before.

Every committed token is guessed first, silently, and the guess compared with it. Only a sequence whose silent guesses were
right has candidates proposed, so text in which nothing repeats pays nothing. Only committed tokens are known here: there is
nothing to roll back, and what is proposed can change no bit.
"""

from collections.abc import Sequence
from math import log

NGRAM = 3  # tokens that must repeat before what followed them is guessed
MAX_GUESSES = 31
ROW_COST = 0.32  # what a further row adds to a pass, as a share of a pass of one row; measured, see docs/benchmarks.md
_DECAY = 0.8  # what an earlier guess still counts for after each newer one
_TOKEN_BITS = 31
_GRAM_MASK = (1 << NGRAM * _TOKEN_BITS) - 1


def row_share(num_tokens: int) -> float:
    """What one more row costs in a pass of so many, as a share of the pass."""
    return ROW_COST * num_tokens / (1 + ROW_COST * (num_tokens - 1))


def num_worthwhile(chance: float, num_tokens: int) -> int:
    """How many guesses are worth their rows in a pass that has num_tokens without them.

    The k-th stands with chance^k. It is worth its row if that is more than the row's share of the pass, which is small where
    one more row is cheap and nearly 1 in a pass that is full of rows already.
    """
    share = row_share(num_tokens)
    if chance <= share:
        return 0
    return MAX_GUESSES if chance >= 1 else min(MAX_GUESSES, int(log(share) / log(chance)))


def is_worth_waiting(chance: float, num_guesses: int) -> bool:
    """Whether a pass with so many guesses is expected to give more than the two tokens that two passes without them do.

    Guesses need known tokens, so a sequence with a token in flight is left out of one pass before it can propose some.
    """
    if chance >= 1:
        return num_guesses > 1
    return (1 - chance ** (num_guesses + 1)) / (1 - chance) > 2


class NgramProposer:
    """The committed tokens of one sequence, and what they suggest comes next."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids: list[int] = []
        self._gram = 0  # the last tokens in one number
        self._behind: dict[int, int] = {}  # an n-gram -> the position behind its last occurrence
        self._guess: int | None = None  # the position of the token that is guessed to come next
        self._hits = 0.5
        self._misses = 0.5
        for token_id in token_ids:
            self._append(token_id)

    @property
    def is_guessing(self) -> bool:
        """Whether the last tokens stood here before."""
        return self._guess is not None

    @property
    def chance(self) -> float:
        """How often guesses were right lately."""
        return self._hits / (self._hits + self._misses)

    def commit(self, token_id: int) -> None:
        """One more committed token. Says in passing whether it was guessed."""
        guess = self._guess
        if guess is None:
            self._append(token_id)
            return
        hit = self._ids[guess] == token_id
        self._hits = self._hits * _DECAY + hit
        self._misses = self._misses * _DECAY + (not hit)
        self._append(token_id)
        if hit:
            self._guess = guess + 1  # go on in the run that is being repeated

    def guesses(self, most: int) -> tuple[int, ...]:
        """The tokens expected next, at most so many."""
        if self._guess is None or most < 1:
            return ()
        expected: list[int] = []
        for at in range(self._guess, self._guess + most):  # a run that reaches its own end goes on in circles
            expected.append(self._ids[at] if at < len(self._ids) else expected[at - len(self._ids)])
        return tuple(expected)

    def _append(self, token_id: int) -> None:
        ids = self._ids
        ids.append(token_id)
        self._gram = gram = ((self._gram << _TOKEN_BITS) | token_id) & _GRAM_MASK
        if len(ids) >= NGRAM:
            self._guess = self._behind.get(gram)
            self._behind[gram] = len(ids)
