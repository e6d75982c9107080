"""All answers to one request, gathered into its result."""

from collections.abc import Mapping
from dataclasses import fields

from holdfast.core.events import RequestEnded
from holdfast.core.plan import TokenLogprob
from holdfast.core.request import Request
from holdfast.core.result import Choice, Determinism, Result, Stats
from holdfast.engine.answer import Answer, Delta

_WEAKEST_FIRST: tuple[Determinism, ...] = ("none", "verified", "certified")


class Reply:
    """One answer a branch of the request. `result` is there once all of them ended."""

    def __init__(self, request: Request, answers: Mapping[int, Answer]) -> None:
        self.request = request
        self.answers = dict(answers)  # by the branch's request id, in order
        self.result: Result | None = None
        self._choices: dict[int, Choice] = {}
        self._ends: list[RequestEnded] = []
        self._scores: list[TokenLogprob | None] = []

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The branches that have not ended."""
        return tuple(branch for branch in self.answers if branch not in self._choices)

    @property
    def logprobs(self) -> tuple[tuple[TokenLogprob, ...], ...]:
        """Of every choice, asked for or not; a deterministic answer has them all."""
        return tuple(tuple(answer.logprobs) for answer in self.answers.values())

    def take_scores(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        self._scores.extend(logprobs)

    def finish(self, ended: RequestEnded) -> Delta:
        """One answer ended. Returns the last of its text."""
        delta, self._choices[ended.request_id] = self.answers[ended.request_id].finish(ended)
        self._ends.append(ended)
        if not self.open_ids:
            self.result = self._gather()
        return delta

    def _gather(self) -> Result:
        request = self.request
        scores = None
        if request.score_from is not None:
            scores = ((None,) if request.score_from == 1 else ()) + tuple(self._scores)
        return Result(
            prompt_token_ids=request.prompt_ids,
            choices=tuple(self._choices[branch] for branch in self.answers),
            seed=request.seed,
            determinism=min((ended.determinism for ended in self._ends), key=_WEAKEST_FIRST.index),
            stats=_sum([ended.stats for ended in self._ends]),
            error=next((ended.error for ended in self._ends if ended.error is not None), None),
            prompt_logprobs=scores,
        )


def _sum(parts: list[Stats]) -> Stats:
    return Stats(**{one.name: sum(getattr(part, one.name) for part in parts) for one in fields(Stats)})
