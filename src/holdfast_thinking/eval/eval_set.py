"""The eval set: texts drawn like the validation texts of training, the same for every model of one
evaluation.

The words of a prompt do not depend on the form of the answer nor on the chunk; tokens and gold
answers do.
"""

from dataclasses import dataclass
from pathlib import Path

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.text.tokenizer import open_tokenizer
from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.data.names import require_tasks
from holdfast_thinking.data.source import BatchSource, open_topics
from holdfast_thinking.data.text_examples import AnswerForm
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.build import chat_frame, open_backend
from holdfast_thinking.run.export import TrainingInfo
from holdfast_thinking.settings import TrainingSettings

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
    """The final answer: the text after the last "So" of a chain of thought, else all of it.

    "" if there is no "So".
    """
    if form == "cot":
        _, so, text = text.rpartition(_SO)
        if not so:
            return ""
    return text.strip()


class EvalSet:
    """Draws prompts for one model. seed, tasks and long_texts are the same for all models of an
    evaluation.
    """

    def __init__(
        self,
        folder: Path,
        info: TrainingInfo,
        thinking: ThinkingConfig | None,
        tasks: tuple[str, ...],
        seed: int,
        long_texts: bool,
    ) -> None:
        require_tasks(tasks)
        path = open_checkpoint(locate(str(folder)).path).path  # the backbone's, for an adapter
        self.tokenizer = open_backend(path)
        self.form: AnswerForm = info.form
        settings = TrainingSettings(
            tasks=tasks,
            form=info.form,
            max_events=info.max_events,
            variables_thought=info.variables_thought,
            long_texts=long_texts,
            seed=seed,
            chunk=1 if thinking is None else thinking.chunk,
            max_thought=1 if thinking is None else thinking.max_thought,
            thought_delay=info.thought_delay,
            thinks_answer=info.thinks_answer,
            carry=thinking is not None and thinking.carry,
        )
        self.chunk = 0 if thinking is None else thinking.chunk
        frame = chat_frame(open_tokenizer(path), str(folder)) if info.chat else None
        topics = open_topics(settings)
        self._source = BatchSource(settings, topics, self.tokenizer, eos_id=0, frame=frame, only_eval=True)

    def has_events(self, task: str) -> bool:
        return self._source.has_events(task)

    def draw(self, task: str, events: int, count: int) -> list[EvalPrompt]:
        """Texts with this number of events; of a file, its first examples, without training's split."""
        return self._prompts(self._source.file_or_eval_batch(task, events, count))

    def _prompts(self, batch: Batch) -> list[EvalPrompt]:
        questions = []
        for index in range(len(batch)):
            num_prompt, num_tokens = int(batch.num_prompt[index]), int(batch.num_tokens[index]) - 1
            ids = batch.token_ids[index].tolist()
            answer = self.tokenizer.decode(ids[num_prompt:num_tokens], skip_special_tokens=False)
            num_chunks = num_prompt // self.chunk if self.chunk else 0
            gold = tuple(
                tuple(int(token) for token in thought if token >= 0)
                for thought in batch.thoughts[index, :num_chunks]
            )
            questions.append(
                EvalPrompt(
                    tuple(ids[:num_prompt]),
                    answer,
                    final_answer(answer, self.form),
                    num_tokens - num_prompt,
                    gold,
                )
            )
        return questions
