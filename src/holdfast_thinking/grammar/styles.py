"""How people write: what ends a sentence, what stands between two, lists, small letters, dropped marks."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    end: str = "."
    gap: str = " "
    item: str = ""  # before each sentence; {} is its number
    lowers: bool = False  # whether sentences start with small letters
    heads_item: bool = True  # whether the first sentences are items too


_LISTS = tuple(
    Style(end=end, gap="\n", item=item, lowers=lowers, heads_item=heads)
    for item, end, lowers, heads in (
        ("{}. ", ".", False, True), ("{}. ", ".", False, False), ("{}. ", "", True, False), ("{}) ", "", True, False),
        ("{}) ", ".", False, True), ("({}) ", ".", False, False), ("- ", "", False, True), ("- ", "", True, False),
        ("- ", ".", False, False), ("• ", "", False, False), ("+ ", ".", True, True), ("Step {}: ", ".", False, False),
        ("Step {}: ", "", True, False), ("step {} - ", "", True, False), ("Round {}: ", "", True, False),
        ("Turn {}: ", ".", False, False), ("Day {}: ", ".", False, False), ("{}: ", "", True, False),
        ("#{} ", "", True, False), ("> ", "", True, True), ("-> ", "", True, False), ("Move {}: ", ";", True, False),
    )
)  # fmt: skip
_CHAINS = tuple(
    Style(end="", gap=gap, lowers=True)
    for gap in (
        " -> ", " => ", ", then ", " then ", " and then ", "; then ", ", and then ", " - ", " / ", ", next ",
        ", after that ", ", ", " and ", " ", " -- ", " + ", " > ", ". then ", ". next ", "; ",
    )
)  # fmt: skip
_SENTENCES = (
    Style(lowers=True), Style(lowers=True), Style(gap="\n"), Style(end="", gap="\n"), Style(end="", gap="\n", lowers=True),
    Style(end=";", lowers=True), Style(end="!"), Style(end=",", lowers=True), Style(end="...", lowers=True),
    Style(end=" ...", lowers=True), Style(end=".", gap="\n\n"), Style(end="", gap=" ... ", lowers=True),
    Style(end=".", gap=" Then "), Style(end=" .", lowers=True), Style(end=";"), Style(end=" ;", lowers=True),
)  # fmt: skip
_INLINE = tuple(
    Style(end=end, item=item, lowers=True, heads_item=False)
    for item, end in (("{}) ", ""), ("{}) ", ","), ("({}) ", ";"), ("{}. ", "."), ("step {}: ", "."))
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
