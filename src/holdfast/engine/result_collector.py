"""Collects the choices of one request into its result.

If the certificate is revoked while some choices of a request still run, its ended choices are
computed again, without deltas. They must come out as they were sent; otherwise the request ends
with `GuaranteeLost`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast.core.events import (
    ExtraCommitted,
    PromptPooled,
    PromptScored,
    RequestEnded,
    TokensCommitted,
    TokensConfirmed,
)
from holdfast.core.request import Prepared
from holdfast.core.results import Choice, Delta, Result, Thought, sum_stats, weakest
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.output import ChoiceOutput
from holdfast.errors import GuaranteeLost

DecodeThought = Callable[[object], Thought]

_LOST = "an answer that was already sent is not that of a verified pass"


@dataclass(frozen=True)
class _SentChoice:
    """A choice as the client has it. Its recomputation must equal it."""

    choice: Choice
    logprobs: tuple[TokenLogprob, ...]
    scores: tuple[TokenLogprob, ...]


class ResultCollector:
    """One `ChoiceOutput` for each branch of the request.

    `result` is set once all of them have ended. Without wants_deltas it is all that is made.
    """

    def __init__(
        self, prepared: Prepared, outputs: Mapping[int, ChoiceOutput], *, wants_deltas: bool = True
    ) -> None:
        self.prepared = prepared
        self.request = prepared.request
        self._wants_deltas = wants_deltas
        self.outputs = dict(outputs)  # by the branch's request id, in order
        self.result: Result | None = None
        self._choices: dict[int, Choice] = {}
        self._ends: dict[int, RequestEnded] = {}
        self._scores: list[TokenLogprob] = []
        self._embedding: bytes | None = None
        self._sent: dict[int, _SentChoice] = {}  # of branches that are computed again
        self._restored: dict[int, Choice] = {}  # of branches that ended in another engine

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The branches that have not ended."""
        return tuple(branch for branch in self.outputs if branch not in self._choices)

    @property
    def ended_ids(self) -> tuple[int, ...]:
        return tuple(self._choices)

    @property
    def logprobs(self) -> tuple[tuple[TokenLogprob, ...], ...]:
        """The logprobs of every choice, requested or not.

        A deterministic choice has one for each token.
        """
        return tuple(
            self._sent[branch].logprobs if branch in self._sent else tuple(output.logprobs)
            for branch, output in self.outputs.items()
        )

    def recompute(self, branch: int, output: ChoiceOutput) -> None:
        """An ended choice is computed again, into this output."""
        first = branch == self.request.request_id
        scores, self._scores = (tuple(self._scores), []) if first else ((), self._scores)
        choice = self._choices.pop(branch)
        self._sent[branch] = _SentChoice(choice, tuple(self.outputs[branch].logprobs), scores)
        self.outputs[branch] = output
        del self._ends[branch]

    def restore_ended(self, branch: int, output: ChoiceOutput, sent: Choice) -> None:
        """A choice that ended in another engine is computed again, into this output."""
        self.outputs[branch] = output
        self._restored[branch] = sent

    def adopt_ended(self, choice: Choice, ended: RequestEnded) -> None:
        """An ordinary choice ended in another engine. It is not computed again."""
        self._choices[ended.request_id], self._ends[ended.request_id] = choice, ended

    def process(
        self,
        event: TokensCommitted
        | TokensConfirmed
        | PromptScored
        | PromptPooled
        | ExtraCommitted
        | RequestEnded,
        decode_thought: DecodeThought,
    ) -> Delta | None:
        """Process an event of one branch. Returns what the client is sent, if anything."""
        branch = event.request_id
        if isinstance(event, PromptScored):
            self._scores.extend(event.logprobs)
            return None
        if isinstance(event, TokensConfirmed):
            self.outputs[branch].confirm_samples(event.samples)
            return None
        if isinstance(event, PromptPooled):
            self._embedding = event.embedding
            return None
        if isinstance(event, TokensCommitted):
            if not self._wants_deltas:
                self.outputs[branch].keep_samples(event.samples)
                return None
            delta = self.outputs[branch].add_samples(event.samples)
        elif isinstance(event, ExtraCommitted):
            delta = self.outputs[branch].add_thoughts([decode_thought(item) for item in event.items])
        else:
            delta = self._end(event)
        is_known = branch in self._sent or branch in self._restored
        return delta if self._wants_deltas and not is_known else None

    def _end(self, ended: RequestEnded) -> Delta:
        branch = ended.request_id
        delta, choice = self.outputs[branch].finish(ended)
        if branch in self._restored:
            choice, ended = self._confirm_restored(choice, ended, self._restored[branch])
        sent = self._sent.get(branch)
        if sent is not None:
            choice, ended = self._confirm(choice, ended, sent)
        self._choices[branch], self._ends[branch] = choice, ended
        if not self.open_ids:
            self.result = self._make_result()
        return delta

    def _confirm(self, choice: Choice, ended: RequestEnded, sent: _SentChoice) -> tuple[Choice, RequestEnded]:
        """Compare a recomputed choice with what was sent.

        The client keeps what it has, with an error if they differ.
        """
        branch = ended.request_id
        if ended.reason != "abort":
            scores = tuple(self._scores) if branch == self.request.request_id else ()
            if _SentChoice(choice, tuple(self.outputs[branch].logprobs), scores) != sent:
                error, code = ended.error or _LOST, ended.error_code or GuaranteeLost.code
                ended = replace(ended, reason="error", error=error, error_code=code)
        if ended.reason in ("abort", "error"):
            return replace(sent.choice, finish_reason=ended.reason), replace(ended, determinism="none")
        return sent.choice, ended

    def _confirm_restored(
        self, choice: Choice, ended: RequestEnded, sent: Choice
    ) -> tuple[Choice, RequestEnded]:
        """Compare a deterministic choice with what another engine sent. An ordinary one may differ:
        the client keeps what it has."""
        if ended.reason in ("abort", "error"):
            return replace(sent, finish_reason=ended.reason), ended
        if not self.request.deterministic:
            return sent, ended
        if _without_top(choice) != _without_top(sent):
            ended = replace(
                ended, reason="error", determinism="none", error=_LOST, error_code=GuaranteeLost.code
            )
            return replace(sent, finish_reason="error"), ended
        return choice, ended

    def _make_result(self) -> Result:
        request, ends = self.request, list(self._ends.values())
        scores: tuple[TokenLogprob | None, ...] | None = None
        if request.score_from is not None:
            sent = self._sent.get(request.request_id)
            scores = tuple(self._scores) if sent is None else sent.scores
            scores = (None, *scores) if request.score_from == 1 else scores
        failed = next((ended for ended in ends if ended.error is not None), None)
        return Result(
            prompt_token_ids=request.prompt_ids,
            choices=tuple(self._choices[branch] for branch in self.outputs),
            seed=request.seed,
            determinism=weakest(ended.determinism for ended in ends),
            stats=sum_stats([ended.stats for ended in ends]),
            error=None if failed is None else failed.error,
            prompt_logprobs=scores,
            error_code=None if failed is None else failed.error_code,
            embedding=self._embedding,
        )


def _without_top(choice: Choice) -> Choice:
    """The choice with the logprobs of its own tokens only."""
    if choice.logprobs is None:
        return choice
    return replace(choice, logprobs=tuple(replace(one, top=()) for one in choice.logprobs))
