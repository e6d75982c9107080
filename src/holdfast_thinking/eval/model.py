"""A model under evaluation: how it was trained, its engine, and its prompts with gold answers.

Prompts are drawn like the validation texts of training. Their words are the same for every model of one
evaluation: they depend neither on the form of the answer nor on the chunk. Tokens and gold answers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.text.tokenizer import open_tokenizer
from holdfast.thinking.config import read_thinking, thinking_folder
from holdfast_thinking.data.source import BatchSource
from holdfast_thinking.model.build import chat_frame, open_backend
from holdfast_thinking.run.export import read_training_info
from holdfast_thinking.settings import AnswerForm, TrainingSettings, require_tasks

OpenLLM = Callable[[Path], LLM]
_SO = "So"
_SPARE = 8  # tokens an answer may be longer than twice the gold one


@dataclass(frozen=True)
class EvalPrompt:
    """A prompt with its gold answer, and a gold thought for each chunk that ends in the prompt."""

    token_ids: tuple[int, ...]
    answer: str  # the gold answer, with its chain of thought if it has one
    final: str
    num_answer: int  # tokens
    thoughts: tuple[tuple[int, ...], ...] = ()

    @property
    def max_tokens(self) -> int:
        return 2 * self.num_answer + _SPARE


def final_answer(text: str, form: AnswerForm) -> str:
    """Return the text after the last "So" of a chain of thought, "" if there is none; else all of it."""
    if form != "cot":
        return text.strip()
    _, so, last = text.rpartition(_SO)
    return last.strip() if so else ""


class EvalModel:
    """A folder that `holdfast train` wrote. tasks, seed and long_texts are the same for all models."""

    def __init__(
        self, name: str, folder: Path, open_llm: OpenLLM, tasks: tuple[str, ...], seed: int, long_texts: bool
    ) -> None:
        require_tasks(tasks)
        self.name, self.folder, self.info = name, folder, read_training_info(folder)
        checkpoint = open_checkpoint(locate(str(folder)).path)  # the backbone's, for an adapter
        own = thinking_folder(str(folder), checkpoint)
        self.thinking = thinking = None if own is None else read_thinking(own, checkpoint.config)
        self.chunk = 0 if thinking is None else thinking.chunk
        self.tokenizer = open_backend(checkpoint.path)
        settings = TrainingSettings(
            tasks=tasks,
            form=self.info.form,
            max_events=self.info.max_events,
            long_texts=long_texts,
            seed=seed,
            chunk=1 if thinking is None else thinking.chunk,
            max_thought=1 if thinking is None else thinking.max_thought,
            thought_delay=self.info.thought_delay,
            thinks_answer=self.info.thinks_answer,
            carry=thinking is not None and thinking.carry,
            settle=thinking is not None and thinking.settle,
        )
        frame = chat_frame(open_tokenizer(checkpoint.path), str(folder)) if self.info.chat else None
        self.source = BatchSource(settings, self.tokenizer, eos_id=0, frame=frame, only_eval=True)
        self.llm = open_llm(folder)

    def draw(self, task: str, events: int, count: int) -> list[EvalPrompt]:
        """Draw texts with this number of events; of a file take its first, without training's split."""
        batch = self.source.file_or_eval_batch(task, events, count)
        closed = 0 * batch.num_prompt
        if self.thinking is not None:
            closed = (batch.ends(self.thinking) <= batch.num_prompt[:, None]).sum(axis=1)
        columns = (batch.token_ids, batch.num_prompt, batch.num_tokens - 1, batch.thoughts, closed)
        return [self._prompt(*each) for each in zip(*(each.tolist() for each in columns), strict=True)]

    def _prompt(
        self, ids: list[int], num_prompt: int, num_tokens: int, thoughts: list[list[int]], closed: int
    ) -> EvalPrompt:
        answer = self.tokenizer.decode(ids[num_prompt:num_tokens], skip_special_tokens=False)
        gold = tuple(tuple(token for token in each if token >= 0) for each in thoughts[:closed])
        final = final_answer(answer, self.info.form)
        return EvalPrompt(tuple(ids[:num_prompt]), answer, final, num_tokens - num_prompt, gold)

    def params(self, prompt: EvalPrompt, **more: Any) -> SamplingParams:
        """Sample greedily, no more tokens than the model has room for."""
        given = {"max_tokens": prompt.max_tokens, "temperature": 0.0, "deterministic": True, **more}
        params = SamplingParams(**given)
        room = self.llm.engine.limits.max_model_len - len(prompt.token_ids)
        return replace(params, max_tokens=max(1, min(given["max_tokens"], room)))

    def generate(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams] | None = None, **more: Any
    ) -> list[Result]:
        params = params or [self.params(each, **more) for each in prompts]
        results = self.llm.generate(
            [each.token_ids for each in prompts], params, use_tqdm=False, want_receipts=False
        )
        for result in results:
            if result.error is not None:
                raise EngineStopped(f"{self.name}: {result.error}")
        return results

    def is_right(self, prompt: EvalPrompt, result: Result) -> bool:
        return final_answer(result.text, self.info.form) == prompt.final
