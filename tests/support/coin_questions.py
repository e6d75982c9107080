"""1,220 questions for `coin` in wordings its training never sees.

held-out: 500, from templates, with names, orders and lengths at random. development: 300, short, chatty,
long-winded, in lower case, with wrong punctuation; settings are chosen with them. free-1, free-2: 320 that were
written one by one, without a look at those of training; the wrong answers to the first 160 were read when
wordings were added to training, those to the others were only counted. free-3: 100 that were written from the
model's card alone, of the kinds it is weak at; no training has been scored with them yet.
"""

import re
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_suffix(".jsonl")


class CoinQuestion(msgspec.Struct, frozen=True):
    """kind: coin, yes/no, idle (a long stretch), variables, outside; of the development questions their style.

    accepted: this is in the answer, and `refused` is not.
    """

    set: str
    kind: str
    prompt: str
    accepted: str
    refused: str = ""

    def is_right(self, answer: str) -> bool:
        return _says(answer, self.accepted) and not (self.refused and _says(answer, self.refused))


def _says(answer: str, words: str) -> bool:
    """Whole words: " I do not know." does not say "no"."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer.lower()) is not None


def coin_questions(name: str) -> list[CoinQuestion]:
    """name: held-out, development, free-1, free-2 or free-3."""
    questions = msgspec.json.Decoder(CoinQuestion).decode_lines(_FILE.read_bytes())
    return [each for each in questions if each.set == name]


def near_prompts() -> list[str]:
    """Prompts near to what the adapter thinks about, written after its training. It has no thought about them."""
    return _FILE.with_name("near_coin.txt").read_text(encoding="utf-8").splitlines()
