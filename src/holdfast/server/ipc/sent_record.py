"""The frontend's record of what one live request was sent: 8 bytes a token.

If the engine process dies, the next one continues the answer from it.
"""

from array import array

from holdfast.core.results import Delta, ThoughtIds
from holdfast.core.sent_answer import SentChoice
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.stop_rules import FinishReason


class SentRecord:
    """One request for num_choices answers.

    keeps_logprobs: keep whole logprobs, as the receipt of an ordinary request needs them. A
    deterministic one computes them again.
    """

    __slots__ = ("_choices", "_keeps_logprobs")

    def __init__(
        self, num_choices: int, *, keeps_logprobs: bool = False, begun: tuple[SentChoice, ...] = ()
    ) -> None:
        """begun: what the client had before the request was sent."""
        self._choices = [_ChoiceRecord() for _ in range(num_choices)]
        self._keeps_logprobs = keeps_logprobs
        for choice, sent in zip(self._choices, begun, strict=False):
            choice.restore(sent)

    def add(self, delta: Delta) -> None:
        """A delta arrived. From now on the client counts as having it."""
        choice = self._choices[delta.index]
        choice.token_ids.extend(delta.token_ids)
        if delta.token_logprobs:
            choice.values.extend(delta.token_logprobs)
        choice.num_chars += len(delta.text)
        if delta.thoughts:
            choice.thoughts.extend(thought.token_ids for thought in delta.thoughts)
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        if self._keeps_logprobs and delta.logprobs:
            choice.logprobs.extend(delta.logprobs)

    @property
    def choices(self) -> tuple[SentChoice, ...]:
        """What the next engine continues from."""
        return tuple(choice.as_sent() for choice in self._choices)


class _ChoiceRecord:
    __slots__ = (
        "finish_reason",
        "logprobs",
        "num_chars",
        "stop_reason",
        "thoughts",
        "token_ids",
        "values",
    )

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.values = array("f")  # logprobs are fp32 values: nothing is rounded
        self.num_chars = 0
        self.thoughts: list[ThoughtIds] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    def restore(self, sent: SentChoice) -> None:
        self.token_ids.extend(sent.token_ids)
        self.values.extend(one.logprob for one in sent.logprobs)
        self.num_chars = sent.num_chars
        self.thoughts += sent.thoughts
        self.finish_reason, self.stop_reason = sent.finish_reason, sent.stop_reason

    def as_sent(self) -> SentChoice:
        ids = tuple(self.token_ids)
        logprobs = tuple(self.logprobs)
        if self.values:
            logprobs = tuple(map(TokenLogprob, ids, self.values))
        return SentChoice(
            ids, logprobs, self.num_chars, tuple(self.thoughts), self.finish_reason, self.stop_reason
        )
