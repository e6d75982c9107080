"""A task draws texts; how they are answered is the same for all tasks."""

from typing import Literal, Protocol

import numpy as np

from holdfast.training.tasks.pieces import Drawn, Pieces

# thinking: thoughts beside the text, a plain answer. none: the plain answer alone. cot: the answer restates every
# event before it answers, five tokens an event or more. words: it says one word an event, the state behind it.
Form = Literal["thinking", "none", "cot", "words"]


class Task(Protocol):
    """Texts about a number of events."""

    @property
    def name(self) -> str: ...

    @property
    def pieces(self) -> Pieces: ...

    def words(self) -> list[str]:
        """Texts whose words the vocabulary should hold."""
        ...

    def draw(self, rng: np.random.Generator, num_texts: int, fewest: int, most: int, form: Form) -> Drawn:
        """Texts of `fewest` to `most` events, each number as likely as the other."""
        ...
