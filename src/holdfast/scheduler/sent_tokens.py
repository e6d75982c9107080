"""What a client has been sent. After a revocation every deterministic answer is computed again, and
what was sent must come out again, bit for bit. Until it has, it is unconfirmed.
"""

from collections.abc import Sequence

from holdfast.core.step_plan import Sampled, TokenLogprob


class SentTokens:
    """The tokens and scores of one deterministic request, in the order they were sent. Empty for
    ordinary requests."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._samples: list[Sampled] = []
        self._scores: list[TokenLogprob] = []
        self._num_scored = 0  # scores that are confirmed

    @property
    def num_sent(self) -> int:
        return len(self._samples)

    def add(self, sample: Sampled) -> None:
        if self._keeps:
            self._samples.append(sample)

    def confirms(self, number: int, sample: Sampled) -> bool:
        """Whether the sample is the number-th token that was sent, counted from 1, its logprobs
        included."""
        sent = self._samples[number - 1]
        return (sent.token_id, sent.logprob) == (sample.token_id, sample.logprob)

    def unconfirmed(self, num_output: int) -> tuple[int, ...]:
        """The tokens sent after the first num_output, which are confirmed."""
        if num_output >= len(self._samples):
            return ()
        return tuple(sample.token_id for sample in self._samples[num_output:])

    def has_unconfirmed(self, num_output: int) -> bool:
        """Whether anything sent is unconfirmed, the first num_output tokens being confirmed."""
        return num_output < len(self._samples) or self._num_scored < len(self._scores)

    def compare_scores(self, scores: Sequence[TokenLogprob]) -> tuple[tuple[TokenLogprob, ...], bool]:
        """Those of the next scores that are new, and whether the others are the ones that were
        sent."""
        known = self._scores[self._num_scored : self._num_scored + len(scores)]
        is_same = list(scores[: len(known)]) == known
        return tuple(scores[len(known) :]), is_same

    def add_scores(self, num_scored: int, new_scores: Sequence[TokenLogprob]) -> None:
        """num_scored more scores were computed; the last of them are new."""
        self._num_scored += num_scored
        if self._keeps:
            self._scores.extend(new_scores)

    def unconfirm(self) -> None:
        """Everything sent must be confirmed again. The tokens are counted by the caller."""
        self._num_scored = 0
