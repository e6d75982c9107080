"""What a client has been sent. When the certificate falls, every deterministic answer is computed again, and what was sent
must come out again bit for bit; until it has, it is unconfirmed.
"""

from collections.abc import Sequence

from holdfast.core.step_plan import Sampled, TokenLogprob


class SentTokens:
    """The committed tokens and scores of one sequence, in the order they were sent. Ordinary sequences need none."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._samples: list[Sampled] = []
        self._scores: list[TokenLogprob] = []
        self._num_scored = 0

    @property
    def num_sent(self) -> int:
        return len(self._samples)

    def add(self, sample: Sampled) -> None:
        if self._keeps:
            self._samples.append(sample)

    def is_new(self, number: int) -> bool:
        """Whether the number-th token was never sent."""
        return number > len(self._samples)

    def confirms(self, number: int, sample: Sampled) -> bool:
        """Whether the number-th token came out again as it was sent, its logprobs included."""
        sent = self._samples[number - 1]
        return (sent.token_id, sent.logprob) == (sample.token_id, sample.logprob)

    def unconfirmed(self, num_output: int) -> tuple[int, ...]:
        """The tokens sent behind the first num_output, which are confirmed."""
        if num_output >= len(self._samples):
            return ()
        return tuple(sample.token_id for sample in self._samples[num_output:])

    def is_open(self, num_output: int) -> bool:
        """Whether anything sent is still unconfirmed, the first num_output tokens being confirmed."""
        return num_output < len(self._samples) or self._num_scored < len(self._scores)

    def take_scores(self, scores: Sequence[TokenLogprob]) -> tuple[tuple[TokenLogprob, ...], bool]:
        """Those of the next scores that are new, and whether the others are as they were sent."""
        known = self._scores[self._num_scored : self._num_scored + len(scores)]
        same = list(scores[: len(known)]) == known
        new = tuple(scores[len(known) :])
        self._num_scored += len(scores)
        if self._keeps:
            self._scores.extend(new)
        return new, same

    def doubt(self) -> None:
        """All of it must be confirmed."""
        self._num_scored = 0
