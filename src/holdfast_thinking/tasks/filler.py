"""Filler texts: they shift events to every position of a chunk, and make texts long."""

import random

import numpy as np


def split_list(text: str, mark: str = " ") -> tuple[str, ...]:
    """A list of words, or of phrases with another mark between them."""
    return tuple(each.strip() for each in text.split(mark))


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
_ADVICE = split_list("Listen well now please for once and then say what you know about this as best you can")
OPENINGS = (*(" ".join(_ADVICE[:count]) + "." for count in range(1, 17)), *SENTENCES)
_BETWEEN = (*SENTENCES, *(f"{one} {other}" for one, other in zip(SENTENCES, SENTENCES[3:], strict=False)))
_WITHOUT_OPENING = 0.4  # share of texts
_RATES = (0.0, 0.0, 0.1, 0.5)  # share of events with a filler before them, for a text


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


def draw_opening(rng: random.Random) -> str:
    """Draw what is said before the first event, with the space after it; "" in some texts."""
    return "" if rng.random() < _WITHOUT_OPENING else f"{rng.choice(OPENINGS)} "


def draw_rate(rng: random.Random, long_texts: bool) -> float:
    """Draw how many events of a text have a filler before them: none, few or many."""
    return rng.choice(_RATES) if long_texts else 0.0


def draw_filler(rng: random.Random, rate: float) -> str:
    """Draw one or two sentences, with the space before them, or ""."""
    return f" {rng.choice(_BETWEEN)}" if rng.random() < rate else ""
