"""The interfaces of tasks, and the forms of an answer."""

import random
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from holdfast_thinking.tasks.phrases import DrawnTexts, PhraseTable

if TYPE_CHECKING:
    from holdfast_thinking.data.text_examples import TextExample

# thinking: thoughts and a plain answer. none: the plain answer only. cot: a chain of thought restates
# every event, in five tokens or more. words: a chain of thought with one word for each event.
AnswerForm = Literal["thinking", "none", "cot", "words"]


@runtime_checkable
class Task(Protocol):
    """Draws texts with a number of events, as phrases."""

    @property
    def name(self) -> str: ...

    @property
    def phrases(self) -> PhraseTable: ...

    def words(self) -> list[str]:
        """Texts whose words should be in the vocabulary."""
        ...

    def draw(
        self, rng: np.random.Generator, num_texts: int, fewest: int, most: int, form: AnswerForm
    ) -> DrawnTexts:
        """Texts of `fewest` to `most` events, uniformly distributed."""
        ...


class TextTask(Protocol):
    """Makes texts with a number of events, one by one."""

    @property
    def name(self) -> str: ...

    def words(self) -> list[str]:
        """Texts whose words should be in the vocabulary."""
        ...

    def example(self, rng: random.Random, events: int) -> "TextExample":
        """A text for training, and for evaluation unless the task has an `eval_example`."""
        ...
