"""A model that is examined: its folder, how it was trained, and the engine that serves it."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm import LLM
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import open_checkpoint
from holdfast.thinking.config import ThinkingConfig, read_thinking
from holdfast.training.eval.eval_set import Papers, Question
from holdfast.training.training_record import Record, read_record

Open = Callable[[Path], LLM]


@dataclass(frozen=True)
class Subject:
    name: str
    folder: Path
    record: Record
    thinking: ThinkingConfig | None
    llm: LLM
    papers: Papers
    deterministic: bool

    def params(self, max_tokens: int, **more: object) -> SamplingParams:
        """Greedy, and guaranteed if the exam is."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            deterministic=self.deterministic,
            **more,  # type: ignore[arg-type]
        )

    def ask(self, questions: Sequence[Question], **more: object) -> list[Result]:
        """All at once."""
        return self.ask_each(questions, [self.params(each.max_tokens, **more) for each in questions])

    def ask_each(
        self, questions: Sequence[Question], params: Sequence[SamplingParams], llm: LLM | None = None
    ) -> list[Result]:
        room = self.llm.engine.limits.max_model_len
        fitting = [
            replace(one, max_tokens=max(1, min(one.max_tokens, room - len(each.token_ids))))
            for each, one in zip(questions, params, strict=True)
        ]
        results = (llm or self.llm).generate(
            [each.token_ids for each in questions], fitting, want_receipts=False
        )
        for result in results:
            if result.error is not None:
                raise EngineStopped(f"{self.name}: {result.error}")
        return results

    def time(
        self, question: Question, params: SamplingParams | None = None, llm: LLM | None = None
    ) -> tuple[float, Result]:
        """One request alone, from asking to the whole answer."""
        params = params or self.params(question.max_tokens)
        started = time.perf_counter()
        (result,) = self.ask_each([question], [params], llm)
        return time.perf_counter() - started, result


def with_schedule(llm: LLM, **changes: Any) -> LLM:
    """The same engine under another schedule. Neither may run while the other does, nor keep pages for later."""
    assert not llm.engine.scheduler.config.prefix_cache, "the two write to the same pages"
    twin = copy.copy(llm)
    twin.engine = llm.engine.restarted(replace(llm.engine.scheduler.config, **changes))
    return twin


def open_subject(
    name: str,
    folder: Path,
    open_llm: Open,
    tasks: tuple[str, ...],
    seed: int,
    long_texts: bool,
    deterministic: bool,
) -> Subject:
    record = read_record(folder)
    thinking = read_thinking(folder, open_checkpoint(folder).config)
    papers = Papers(folder, record, thinking, tasks, seed, long_texts)
    llm = open_llm(folder)
    return Subject(name, folder, record, thinking, llm, papers, deterministic)
