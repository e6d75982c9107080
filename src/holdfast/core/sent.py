"""What a client has been sent of one answer.

The frontend records it while the answer is sent; a receipt holds it, too. Any engine with the same
fingerprint can continue the answer from it: one that was restarted, or the same one later. The tokens
of a deterministic answer are candidates there, which must be confirmed bit for bit. Those of an
ordinary answer are committed at once.
"""

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from holdfast.core.results import Delta, ThoughtIds
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.stop_rules import FinishReason

if TYPE_CHECKING:
    Ints: TypeAlias = array[int]
    Floats: TypeAlias = array[float]
else:
    Ints = Floats = array  # messages are decoded by these types, and 3.11 has no array[int]


@dataclass(slots=True)
class Sent:
    """One answer, as far as it was sent: 8 bytes a token.

    token_ids      a stop token included
    values         the fp32 logprob of each token of a deterministic answer; NaN: not known, so that only
                   the token is compared
    num_chars      characters of text, an echoed prompt included
    thoughts       those after chunks 0, 1, 2, ...
    logprobs       whole ones of an ordinary answer, if its receipt will need them; a deterministic
                   answer computes them again
    finish_reason  of an answer that has ended while others of its request run; so is stop_reason
    """

    token_ids: Ints = field(default_factory=lambda: array("i"))
    values: Floats = field(default_factory=lambda: array("f"))
    num_chars: int = 0
    thoughts: list[ThoughtIds] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta, *, keeps_logprobs: bool = False) -> None:
        """A delta was sent. keeps_logprobs: keep whole logprobs."""
        self.token_ids.extend(delta.token_ids)
        if delta.token_logprobs:
            self.values.extend(delta.token_logprobs)
        self.num_chars += len(delta.text)
        if delta.thoughts:
            self.thoughts.extend(thought.token_ids for thought in delta.thoughts)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if keeps_logprobs and delta.logprobs:
            self.logprobs.extend(delta.logprobs)

    @property
    def has_ended(self) -> bool:
        return self.finish_reason in ("stop", "length")

    @property
    def own_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The logprob of each token of a deterministic answer, without the most likely ones."""
        return tuple(map(TokenLogprob, self.token_ids, self.values))

    def before_last(self) -> "Sent":
        """Return an answer that ended, before its last token, which ends it again."""
        return replace(
            self,
            token_ids=self.token_ids[:-1],
            values=self.values[:-1],
            logprobs=self.logprobs[:-1],
            finish_reason=None,
            stop_reason=None,
        )


NOTHING_SENT = Sent()
