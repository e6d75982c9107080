"""The interface of a task, and the forms of an answer."""

from typing import Literal, Protocol

import numpy as np

from holdfast.training.tasks.phrases import DrawnTexts, PhraseTable

# thinking: thoughts and a plain answer. none: the plain answer only. cot: a chain of thought restates
# every event, in five tokens or more. words: a chain of thought with one word for each event.
AnswerForm = Literal["thinking", "none", "cot", "words"]


class Task(Protocol):
    """Draws texts with a number of events."""

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
