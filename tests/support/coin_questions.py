"""1,520 questions for `coin` in wordings its training never sees.

held-out: 500, from templates, with names, orders and lengths at random. development: 300, short, chatty,
long-winded, in lower case, with wrong punctuation; settings are chosen with them. free-1, free-2: 320 that were
written one by one, without a look at those of training; the wrong answers to the first 160 were read when
wordings were added to training, those to the others were only counted. free-3: 400 that were written from the
models' cards alone, of the kinds they were weak at; their answers were only counted.

Also 60 messages, written like free-3, that mention a coin and instruct something else.
"""

import re
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_suffix(".jsonl")
_WORDS_OF_A_SIDE = {"heads", "tails", "yes", "no", "it", "is", "the", "coin", "side", "up", "now", "shows"}


class CoinQuestion(msgspec.Struct, frozen=True):
    """kind: coin, yes/no, idle (a long stretch), variables, outside; of the development questions their style.

    accepted: this is in the answer, and `refused` is not. A "|" separates alternatives.
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
    either = "|".join(re.escape(each) for each in words.split("|"))
    return re.search(rf"(?<!\w)(?:{either})(?!\w)", answer.lower()) is not None


class CoinMessage(msgspec.Struct, frozen=True):
    """instruction: whether it is "first" or "last". one_of: who follows it says one of these."""

    instruction: str
    prompt: str
    one_of: tuple[str, ...]

    def is_followed(self, answer: str) -> bool:
        """Return whether `answer` is more than a side of a coin, and says what the instruction asks for."""
        says_more = set(re.findall(r"\w+", answer.lower())) - _WORDS_OF_A_SIDE
        return bool(says_more) and (not self.one_of or any(each in answer.lower() for each in self.one_of))


def coin_questions(name: str) -> list[CoinQuestion]:
    """name: held-out, development, free-1, free-2 or free-3."""
    questions = msgspec.json.Decoder(CoinQuestion).decode_lines(_FILE.read_bytes())
    return [each for each in questions if each.set == name]


def coin_messages(instruction: str) -> list[CoinMessage]:
    lines = _FILE.with_name("coin_messages.jsonl").read_bytes()
    return [
        each
        for each in msgspec.json.Decoder(CoinMessage).decode_lines(lines)
        if each.instruction == instruction
    ]


def near_prompts() -> list[str]:
    """Prompts near to what the adapter thinks about, written after its training. It has no thought about them."""
    return _FILE.with_name("near_coin.txt").read_text(encoding="utf-8").splitlines()
