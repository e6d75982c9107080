"""All answers to one request, gathered into its result.

An answer that ended while others of the same request go on is not out of doubt yet: if the certificate falls, it is computed
again, in silence, and must come out as it was sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from holdfast.core.events import PromptScored, RequestEnded, ThoughtsCommitted, TokensCommitted
from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Result, Stats, Thought
from holdfast.core.step_plan import ThoughtIds, TokenLogprob
from holdfast.engine.output import Answer, Delta

Spell = Callable[[int, ThoughtIds], Thought]

_WEAKEST_FIRST: tuple[Determinism, ...] = ("none", "verified", "certified")
_LOST = "guarantee_lost: an answer that was sent already is not that of a verified pass"


@dataclass(frozen=True)
class _Sent:
    """An answer as the client has it, to be confirmed."""

    choice: Choice
    logprobs: tuple[TokenLogprob, ...]
    scores: tuple[TokenLogprob, ...]


class ResultCollector:
    """One answer a branch of the request. `result` is there once all of them ended."""

    def __init__(self, request: Request, answers: Mapping[int, Answer]) -> None:
        self.request = request
        self.answers = dict(answers)  # by the branch's request id, in order
        self.result: Result | None = None
        self._choices: dict[int, Choice] = {}
        self._ends: dict[int, RequestEnded] = {}
        self._scores: list[TokenLogprob] = []
        self._sent: dict[int, _Sent] = {}  # those that are computed again

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The branches that have not ended."""
        return tuple(branch for branch in self.answers if branch not in self._choices)

    @property
    def ended_ids(self) -> tuple[int, ...]:
        return tuple(self._choices)

    @property
    def logprobs(self) -> tuple[tuple[TokenLogprob, ...], ...]:
        """Of every choice, asked for or not; a deterministic answer has them all."""
        return tuple(
            self._sent[branch].logprobs if branch in self._sent else tuple(answer.logprobs)
            for branch, answer in self.answers.items()
        )

    def doubt(self, branch: int, answer: Answer) -> None:
        """An answer that ended is computed again, as a new one."""
        first = branch == self.request.request_id
        scores, self._scores = (tuple(self._scores), []) if first else ((), self._scores)
        choice = self._choices.pop(branch)
        self._sent[branch] = _Sent(choice, tuple(self.answers[branch].logprobs), scores)
        self.answers[branch] = answer
        del self._ends[branch]

    def take(
        self, event: TokensCommitted | PromptScored | ThoughtsCommitted | RequestEnded, spell: Spell
    ) -> Delta | None:
        """News of one branch; what the client is told of it. spell makes a thought of a chunk's number and token ids."""
        branch = event.request_id
        if isinstance(event, PromptScored):
            self._scores.extend(event.logprobs)
            return None
        if isinstance(event, TokensCommitted):
            delta = self.answers[branch].take(event.samples)
        elif isinstance(event, ThoughtsCommitted):
            delta = self.answers[branch].take_thoughts([spell(*thought) for thought in event.thoughts])
        else:
            delta = self._finish(event)
        return None if branch in self._sent else delta

    def _finish(self, ended: RequestEnded) -> Delta:
        branch = ended.request_id
        delta, choice = self.answers[branch].finish(ended)
        sent = self._sent.get(branch)
        if sent is not None and ended.reason != "abort":
            scores = tuple(self._scores) if branch == self.request.request_id else ()
            if _Sent(choice, tuple(self.answers[branch].logprobs), scores) != sent:
                ended = replace(ended, reason="error", determinism="none", error=ended.error or _LOST)
        if sent is not None:
            lost = ended.reason in ("abort", "error")
            choice = replace(sent.choice, finish_reason=ended.reason if lost else sent.choice.finish_reason)
            ended = replace(ended, determinism="none") if lost else ended
        self._choices[branch], self._ends[branch] = choice, ended
        if not self.open_ids:
            self.result = self._gather()
        return delta

    def _gather(self) -> Result:
        request, ends = self.request, list(self._ends.values())
        scores: tuple[TokenLogprob | None, ...] | None = None
        if request.score_from is not None:
            sent = self._sent.get(request.request_id)
            scores = tuple(self._scores) if sent is None else sent.scores
            scores = (None, *scores) if request.score_from == 1 else scores
        return Result(
            prompt_token_ids=request.prompt_ids,
            choices=tuple(self._choices[branch] for branch in self.answers),
            seed=request.seed,
            determinism=min((ended.determinism for ended in ends), key=_WEAKEST_FIRST.index),
            stats=_sum([ended.stats for ended in ends]),
            error=next((ended.error for ended in ends if ended.error is not None), None),
            prompt_logprobs=scores,
        )


def _sum(parts: list[Stats]) -> Stats:
    return Stats(**{one.name: sum(getattr(part, one.name) for part in parts) for one in fields(Stats)})
