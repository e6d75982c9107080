"""What a client has been sent of an answer that is not complete yet.

Another engine can continue the answer from it: one that was restarted, or the same one later. The
sent tokens of a deterministic request are candidates there, which must be confirmed bit for bit.
Those of an ordinary request are committed at once.
"""

from dataclasses import dataclass, replace

from holdfast.core.results import ThoughtIds
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.stop_rules import FinishReason


@dataclass(frozen=True)
class SentChoice:
    """One choice, as far as it was sent.

    logprobs: of a deterministic choice one for each token. Where `top` is empty, only the token's own
    logprob is compared. num_chars: characters of text, an echoed prompt included. thoughts: those
    after chunks 0, 1, 2, ... finish_reason and stop_reason: of a choice that has ended while others of
    its request run.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    num_chars: int = 0
    thoughts: tuple[ThoughtIds, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def has_ended(self) -> bool:
        return self.finish_reason in ("stop", "length")

    def before_last(self) -> "SentChoice":
        """An ended choice before its last token, which ends it again."""
        return replace(
            self,
            token_ids=self.token_ids[:-1],
            logprobs=self.logprobs[: len(self.token_ids) - 1],
            finish_reason=None,
            stop_reason=None,
        )


NOTHING_SENT = SentChoice()
