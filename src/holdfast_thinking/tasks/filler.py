"""Filler texts: they shift events to every position of a chunk, and make texts long."""

import numpy as np

from holdfast_thinking.model.batch import Bools, Ints
from holdfast_thinking.tasks.phrases import PhraseTable

# fmt: off
NAMES = (
    "Alice", "Bob", "Carol", "Dave", "Erin", "Frank", "Grace", "Heidi", "Ivan", "Judy", "Karl", "Laura",
    "Mallory", "Niels", "Olivia", "Peggy", "Quinn", "Rupert", "Sybil", "Trent", "Ursula", "Victor",
    "Wendy", "Xavier", "Yvonne", "Zoe", "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo",
    "Ida", "Jonas", "Kira", "Leo", "Mia", "Noah", "Oscar", "Paula", "Rosa", "Sam", "Tom", "Uma", "Vera",
    "Will",
)
# fmt: on
SENTENCES = (
    "It is raining.",
    "The cat sleeps on the mat.",
    "Nobody says a word.",
    "A train passes by in the distance.",
    "Somebody opens the window, and somebody else closes it again.",
    "Outside the sun goes down behind the old houses of the town.",
    "There is tea and bread on the table for everyone who is hungry.",
    "The clock on the wall strikes, but it has been wrong for years.",
    "On the radio they talk about the weather, the roads and a football game that was played far away.",
    "Two children run up the stairs, laugh at something in the garden and run down again without a word.",
)
_ADVICE = "Listen well now please for once and then say what you know about this as best you can"


def split_list(text: str, mark: str = " ") -> tuple[str, ...]:
    """A list of words, or of phrases with another mark between them."""
    return tuple(each.strip() for each in text.split(mark))


def byte_names(count: int) -> list[str]:
    """Names outside the vocabulary, encoded as bytes like any name a user may type."""
    rng = np.random.default_rng(7)
    soft, hard = "aeiou", "bdfgklmnprstvz"
    return [
        "".join(
            str(rng.choice(list(hard if place % 2 else soft))) for place in range(rng.integers(3, 7))
        ).title()
        for _ in range(count)
    ]


def filler_texts() -> list[str]:
    """The filler phrases: openings of one to sixteen words, then one or two sentences."""
    advice = _ADVICE.split(" ")
    openings = [" ".join(advice[:count]) + "." for count in range(1, 17)]
    several = [f" {one} {other}" for one, other in zip(SENTENCES, SENTENCES[3:], strict=False)]
    return [*openings, *(f" {each}" for each in SENTENCES), *several, *SENTENCES]


class Filler:
    """Draws fillers as phrase numbers. Without long texts, only openings."""

    def __init__(self, phrases: PhraseTable, long_texts: bool) -> None:
        self._long_texts = long_texts
        texts = filler_texts()
        self._between = phrases.numbers([each for each in texts if each.startswith(" ")])
        self._openings = phrases.numbers([each for each in texts if not each.startswith(" ")])

    def openings(self, rng: np.random.Generator, num_texts: int) -> Ints:
        """[B]: the text before the first event; none in 40% of the texts."""
        drawn = rng.choice(self._openings, num_texts)
        return np.where(rng.random(num_texts) < 0.4, 0, drawn)

    def between(self, rng: np.random.Generator, allowed: Bools) -> Ints:
        """allowed [B, n] -> fillers [B, n]: none in half of the texts, few or many in the others."""
        if not self._long_texts:
            return np.zeros(allowed.shape, dtype=np.int64)
        rate = rng.choice([0.0, 0.0, 0.1, 0.5], len(allowed))[:, None]
        drawn = rng.choice(self._between, allowed.shape)
        return np.where(allowed & (rng.random(allowed.shape) < rate), drawn, 0)
