"""The texts a model is asked: drawn as training draws those it tests with, the same for every model of one exam.

Which words stand in a text does not depend on the form of the answer, nor on the chunk; only tokens and gold answers do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.thinking.config import ThinkingConfig
from holdfast.training.settings import Settings
from holdfast.training.source import Source, open_topics
from holdfast.training.tasks.task import Form
from holdfast.training.training_record import Record

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TASKS = ("parity", "variables")
_CHAINS = ("cot", "words")
_SO = "So"
_SPARE = 8  # tokens an answer may be longer than the gold one


@dataclass(frozen=True)
class Question:
    """thoughts: the gold ones, a chunk each, of the chunks that lie whole in the prompt."""

    token_ids: tuple[int, ...]
    answer: str  # the gold one as it is written, with its chain of thought if it has one
    final: str
    num_answer: int  # tokens
    thoughts: tuple[tuple[int, ...], ...] = ()

    @property
    def max_tokens(self) -> int:
        return self.num_answer + _SPARE


def final_answer(text: str, form: Form) -> str:
    """What is answered in the end: behind the last "So" of a chain of thought, else all of it. "" if there is no end."""
    if form in _CHAINS:
        _, so, text = text.rpartition(_SO)
        if not so:
            return ""
    return text.strip()


class Papers:
    """Draws for one model. Texts are those of the whole exam: its seed and tasks, with filler or without."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        thinking: ThinkingConfig | None,
        tasks: tuple[str, ...],
        seed: int,
        long_texts: bool,
    ) -> None:
        unknown = [task for task in tasks if task not in TASKS]
        if unknown:
            raise ConfigError(f"there is no exam on {unknown[0]!r}; there are {', '.join(TASKS)}")
        self.tokenizer = open_backend(folder)
        self.form: Form = record.form
        settings = Settings(
            tasks=tasks,
            form=record.form,
            max_events=record.max_events,
            variables_thought=record.variables_thought,
            long_texts=long_texts,
            seed=seed,
            chunk=1 if thinking is None else thinking.chunk,
            max_thought=1 if thinking is None else thinking.max_thought,
        )
        self._chunk = 0 if thinking is None else thinking.chunk
        self._source = Source(settings, open_topics(settings), self.tokenizer, eos_id=0)

    def draw(self, task: str, events: int, count: int) -> list[Question]:
        batch = self._source.test(task, events, count)
        questions = []
        for index in range(len(batch)):
            num_prompt, num_tokens = int(batch.num_prompt[index]), int(batch.num_tokens[index]) - 1
            ids = batch.token_ids[index].tolist()
            answer = self.tokenizer.decode(ids[num_prompt:num_tokens], skip_special_tokens=False)
            num_chunks = num_prompt // self._chunk if self._chunk else 0
            gold = tuple(
                tuple(int(token) for token in thought if token >= 0)
                for thought in batch.thoughts[index, :num_chunks]
            )
            questions.append(
                Question(
                    tuple(ids[:num_prompt]),
                    answer,
                    final_answer(answer, self.form),
                    num_tokens - num_prompt,
                    gold,
                )
            )
        return questions


def open_backend(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no tokenizer.json; the tasks' texts cannot be written for it")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
