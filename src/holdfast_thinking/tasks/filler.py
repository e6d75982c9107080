"""Filler texts: they shift events to every position of a chunk, and make texts long."""

import random

import numpy as np

from holdfast_thinking.data.words import read_words

_filler = read_words("filler")
NAMES, SENTENCES = _filler.NAMES, _filler.SENTENCES
OPENINGS = (*(" ".join(_filler.ADVICE[:count]) + "." for count in range(1, 17)), *SENTENCES)
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
