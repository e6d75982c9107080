"""How people write: what ends a sentence, what stands between two, lists, small letters, dropped marks."""

import random
from dataclasses import dataclass

from holdfast_thinking.data.words import read_words

_words = read_words("styles")
STATEMENTS = tuple(tuple(line.split("|")) for line in _words.STATEMENTS)


@dataclass(frozen=True)
class Style:
    end: str = "."
    gap: str = " "
    item: str = ""  # before each sentence; {} is its number
    lowers: bool = False  # whether sentences start with small letters
    heads_item: bool = True  # whether the first sentences are items too


def _read_style(line: str) -> Style:
    end, gap, item, marks = line.split("|")
    return Style(end, gap, item, "small" in marks, "late" not in marks)


_LISTS, _CHAINS, _SENTENCES, _INLINE = (
    tuple(map(_read_style, lines)) for lines in (_words.LISTS, _words.CHAINS, _words.SENTENCES, _words.INLINE)
)


@dataclass(frozen=True)
class Typing:
    is_lower: bool
    drops_apostrophes: bool
    drops_commas: bool
    is_short: bool

    def typed(self, text: str) -> str:
        if self.drops_apostrophes:
            text = text.replace("'", "")
        if self.drops_commas:
            text = text.replace(",", "")
        if self.is_short:
            text = text.replace(" and ", " & ").replace(" you ", " u ").replace(" please ", " pls ")
        return text


def draw_style(rng: random.Random, plain: float) -> Style:
    """plain: the share of texts in sentences with periods."""
    if rng.random() < plain:
        return Style()
    kinds = (_SENTENCES, _SENTENCES, _CHAINS, _CHAINS, _LISTS, _LISTS, _INLINE)
    return rng.choice(rng.choice(kinds))


def draw_typing(rng: random.Random) -> Typing:
    return Typing(rng.random() < 0.15, rng.random() < 0.12, rng.random() < 0.06, rng.random() < 0.03)


def vocabulary() -> list[str]:
    items = [style.item.replace("{}", "1") for style in (*_LISTS, *_INLINE)]
    return [*items, *(style.gap for style in (*_CHAINS, *_SENTENCES)), " & u pls"]
