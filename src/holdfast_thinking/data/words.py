"""Reads lists of words and sentences from the text files in `words/`.

    [FLIPS]               starts a list
    flip {o}|             an entry a line, with {slots} and a bar, which mean what their task says
    turn {o} over *2      the same entry twice: repeats are weights
    ""                    the empty entry; others with spaces at their ends are quoted as well, as in JSON
    <PEOPLE> flip it      an entry of the list PEOPLE is drawn for this part, by `draw`; of <file.PEOPLE> in another file
    ^<PEOPLE> flip it     with a capital letter; {s} becomes {S}, other slots stay
    # ..                  a comment

The order of entries decides what is drawn.
"""

import json
import random
import re
from functools import cache
from importlib import resources

_REPEATED = re.compile(r"(.*) \*(\d+)")
_PART = re.compile(r"<(?:([a-z_]+)\.)?([A-Z_]+)>")
_CAPITAL = re.compile(r"\^(\{s|[^{]|)")


class Words:
    def __init__(self, lists: dict[str, tuple[str, ...]]) -> None:
        self.lists = lists

    @property
    def texts(self) -> list[str]:
        return [_PART.sub(" ", text).replace("^", "") for each in self.lists.values() for text in each]

    def draw(self, name: str, rng: random.Random) -> str:
        """Draw an entry of a list, and of the lists that are parts of it."""

        def draw_part(part: re.Match[str]) -> str:
            return (read_words(part[1]) if part[1] else self).draw(part[2], rng)

        text = _PART.sub(draw_part, rng.choice(self.lists[name]))
        return _CAPITAL.sub(lambda found: found[1].upper(), text)

    def __getattr__(self, name: str) -> tuple[str, ...]:
        try:
            return self.lists[name]
        except KeyError:
            raise AttributeError(f"there is no list [{name}]") from None


@cache
def read_words(name: str) -> Words:
    path = resources.files("holdfast_thinking").joinpath("words", f"{name}.txt")
    return parse_words(path.read_text(encoding="utf-8"))


def parse_words(text: str) -> Words:
    lists: dict[str, list[str]] = {}
    entries: list[str] = []
    for line in filter(None, text.split("\n")):
        if line.startswith("#"):
            continue
        if line.startswith("["):
            entries = lists[line.strip("[]")] = []
            continue
        repeated = _REPEATED.fullmatch(line)
        entry, count = (repeated[1], int(repeated[2])) if repeated else (line, 1)
        if len(entry) > 1 and entry[0] == entry[-1] == '"':
            entry = json.loads(entry)
        entries += [entry] * count
    return Words({name: tuple(held) for name, held in lists.items()})
