"""Reads lists of words and sentences from the text files in `words/`.

    [FLIPS]               starts a list
    flip {o}|             an entry a line, with {slots} and a bar, which mean what their task says
    turn {o} over *2      the same entry twice: repeats are weights
    ""                    the empty entry; others with spaces at their ends are quoted as well, as in JSON
    # ..                  a comment

The order of entries decides what is drawn.
"""

import json
import re
from functools import cache
from importlib import resources

_REPEATED = re.compile(r"(.*) \*(\d+)")


class Words:
    def __init__(self, lists: dict[str, tuple[str, ...]]) -> None:
        self.lists = lists

    @property
    def texts(self) -> list[str]:
        return [text for each in self.lists.values() for text in each]

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
