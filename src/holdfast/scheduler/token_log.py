"""The tokens of one request: the prompt, the committed tokens after it, the candidates after those. And what
a client has been sent of them that must come out again.

    position   0 ........ prompt_len ........ committed_len ........ total_len
               | prompt   | committed answer  | candidates           |

Candidates are only appended, and all dropped when their window is verified, which commits anew.
"""

from collections.abc import Sequence
from math import isnan

from holdfast.core.sent import Sent
from holdfast.core.step_plan import Sampled, TokenLogprob


class ConfirmLog:
    """The tokens and scores of one deterministic request, in the order they were sent. Empty for
    ordinary requests.

    They must come out again, bit for bit: after a revocation all of it, and what another engine sent before
    this one continued the answer. Until it has, it is unconfirmed.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._samples: list[Sampled] = []
        self._scores: list[TokenLogprob] = []
        self._num_scored = 0  # scores that are confirmed
        self._num_restored = 0  # tokens that another engine sent
        self._num_recomputed = 0  # those of them that this engine has computed

    @property
    def num_sent(self) -> int:
        return len(self._samples)

    def add(self, sample: Sampled) -> None:
        if self._keeps:
            self._samples.append(sample)

    def restore(self, sent: Sent) -> None:
        """Another engine sent this. Of its logprobs at most those of the tokens themselves are known."""
        self._samples = [Sampled(one.token_id, one) for one in sent.own_logprobs]
        self._num_restored = len(self._samples)

    def recompute(self, number: int, sample: Sampled) -> bool:
        """Note that this sample confirms the number-th token. Return whether another engine sent it, and
        this one computed it for the first time."""
        if not self._num_recomputed < number <= self._num_restored:
            return False
        self._samples[number - 1] = sample
        self._num_recomputed = number
        return True

    def confirms(self, number: int, sample: Sampled) -> bool:
        """Return whether the sample is the number-th token that was sent, counted from 1, its logprobs
        included if they are known."""
        sent = self._samples[number - 1]
        if self._num_recomputed < number <= self._num_restored:
            assert sent.logprob is not None and sample.logprob is not None
            is_same = isnan(sent.logprob.logprob) or sent.logprob.logprob == sample.logprob.logprob
            return is_same and sent.token_id == sample.token_id
        return (sent.token_id, sent.logprob) == (sample.token_id, sample.logprob)

    def unconfirmed(self, num_output: int) -> tuple[int, ...]:
        """Return the tokens that were sent after the first num_output, which are confirmed."""
        return tuple(sample.token_id for sample in self._samples[num_output:])

    def has_unconfirmed(self, num_output: int) -> bool:
        return num_output < len(self._samples) or self._num_scored < len(self._scores)

    def compare_scores(self, scores: Sequence[TokenLogprob]) -> tuple[tuple[TokenLogprob, ...], bool]:
        """Return those of the next scores that are new, and whether the others are the ones that were sent."""
        known = self._scores[self._num_scored : self._num_scored + len(scores)]
        return tuple(scores[len(known) :]), list(scores[: len(known)]) == known

    def add_scores(self, num_scored: int, new_scores: Sequence[TokenLogprob]) -> None:
        """Note that num_scored more scores were computed, of which the last are new."""
        self._num_scored += num_scored
        if self._keeps:
            self._scores.extend(new_scores)

    def unconfirm(self) -> None:
        """Everything sent must be confirmed again. The caller counts the tokens."""
        self._num_scored = 0


class TokenLog:
    """The tokens by position, counted from the first prompt token."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids = list(prompt_ids)
        self.prompt_len = len(self._ids)
        self.committed_len = self.prompt_len
        self.num_candidates = 0

    @property
    def total_len(self) -> int:
        return len(self._ids)

    @property
    def num_output(self) -> int:
        return self.committed_len - self.prompt_len

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(self._ids[self.committed_len :])

    @property
    def last(self) -> int:
        """The last token, committed or candidate."""
        return self._ids[-1]

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self._ids[start:stop])

    def propose(self, token_id: int) -> None:
        self._ids.append(token_id)
        self.num_candidates += 1

    def commit(self, token_id: int) -> None:
        assert not self.num_candidates, "candidates must be verified before a token is committed"
        self._ids.append(token_id)
        self.committed_len += 1

    def drop_candidates(self) -> int:
        """Return how many there were."""
        num_dropped = self.num_candidates
        if num_dropped:
            del self._ids[self.committed_len :]
            self.num_candidates = 0
        return num_dropped

    def drop_output(self) -> None:
        """Go back to the prompt."""
        assert self.num_candidates == 0
        del self._ids[self.prompt_len :]
        self.committed_len = self.prompt_len
