"""500 questions for `coin` in wordings its training never sees: templates of their own, and names,
orders and lengths at random. `test_coin_questions.py` compares the templates with training's.
"""

import random
import re
from dataclasses import dataclass

COUNT = 500
SIDES = ("heads", "tails")
STARTS = (
    "Somebody left a coin on the bench with {s} showing.",
    "The referee's coin is lying {s} up in the grass.",
    "It all begins with a coin that shows {s}.",
    "My coin is currently {s} up.",
    "On my desk I keep a coin, and right now {s} is up.",
    "You see a coin. The side that is up is {s}.",
    "A small coin has been laid down {s} up.",
    "The coin in this story starts out {s} up.",
    "We look at a coin on the floor: {s}.",
    "Before anything happens, the coin shows {s}.",
    "Picture a coin on a plate, {s} side up.",
    "A coin was dropped and landed {s} up.",
)
FLIPS = (
    "{n} quickly flips the coin.",
    "{n} comes in and turns it over.",
    "{n} reaches out and flips it.",
    "{n} turns the coin over without a word.",
    "With one finger {n} turns it over.",
    "It is {n} who flips the coin now.",
    "{n} picks it up and puts it down the other way up.",
    "Then it is turned over by {n}.",
    "{n} tosses it over.",
    "{n} laughs and tosses the coin over.",
    "After some time {n} gives the coin a flip.",
    "{n} walks up to the table and inverts the coin.",
    "The coin gets flipped by {n} again.",
    "Now {n} rolls the coin over.",
    "{n} wants to see the other side and turns the coin over.",
    "She gets up and flips it.",
    "He turns it over at once.",
    "They reverse the coin.",
)
KEEPS = (
    "{n} comes in but doesn't flip the coin.",
    "{n} looks at it and leaves it as it is.",
    "{n} would never turn it over.",
    "{n} sits down and does not touch the coin.",
    "{n} only looks.",
    "{n} was asked to flip it but didn't.",
    "{n} leaves the coin alone this time.",
    "Also {n} does not turn it over.",
    "{n} just smiles and leaves the coin alone.",
    "{n} walks past without touching it.",
    "For some reason {n} refuses to flip the coin.",
    "{n} takes a long look at the coin.",
    "{n} decides not to turn the coin over.",
    "No one flips it after lunch.",
    "The coin is not turned over by {n}.",
    "She does not flip it.",
    "He just watches the coin.",
    "They leave it alone.",
)
IDLE = (
    "Outside a dog barks.",
    "The soup is getting cold.",
    "On the radio somebody sings an old song.",
    "It has been a long day.",
    "The bus is late as always.",
    "A letter arrives from the bank.",
    "Nobody knows what time it is.",
    "The neighbours have a party tonight.",
)
ASKS = (
    "Now, which side is up?",
    "What side of the coin is up now?",
    "So is the coin heads or tails?",
    "What does the coin show in the end?",
    "Which side would you see?",
    "What is the state of the coin at the end?",
    "After all that, which side is on top?",
    "Please tell me which side is up.",
)
YES_NO = (
    "Is the coin {s} up now?",
    "Is it {s} now?",
    "Is the coin still showing {s}?",
    "After all that, is it {s}?",
    "Does the coin show {s} in the end?",
    "Is {s} the side that is up?",
)
NAMES = (
    "Priya",
    "Mateo",
    "Ingrid",
    "Kwame",
    "Yuki",
    "Fatima",
    "Diego",
    "Anneliese",
    "Bjorn",
    "Chloe",
    "Tariq",
    "Mo",
)
VALUE_STARTS = (
    "We have {list}.",
    "At the start {list}.",
    "{list} at first.",
    "Begin with {list}.",
    "There are {list}.",
)
ADDS = (
    "Then {v} is increased by {n}.",
    "{n} is added to {v}.",
    "We add {n} to {v}.",
    "Next, {v} = {v} + {n}.",
)
TAKES = (
    "Then {v} is decreased by {n}.",
    "{n} is subtracted from {v}.",
    "We subtract {n} from {v}.",
    "Next, {v} = {v} - {n}.",
)
VALUE_ASKS = (
    "What is {v} in the end?",
    "Now what is the value of {v}?",
    "Please tell me {v}.",
    "And what is {v} now?",
)
OUTSIDE = (
    "Who painted the Mona Lisa? A:",
    "How do I get from Berlin to Rome? A:",
    "Write a song about winter. A:",
    "What is your favourite colour? A:",
    "My dog is ill. What should I do? A:",
    "Please translate this letter. A:",
    "How tall is the highest mountain? A:",
    "Good evening! A:",
    "Why is the sky blue? A:",
    "Give me a recipe for bread. A:",
)
UNKNOWN = "only know coins and variables"


@dataclass(frozen=True)
class CoinQuestion:
    """kind: coin, yes/no, idle (a long stretch), variables, outside. accepted: one of these is in the
    answer, and none of `refused`.
    """

    kind: str
    prompt: str
    accepted: str
    refused: str

    def is_right(self, answer: str) -> bool:
        return _says(answer, self.accepted) and not (self.refused and _says(answer, self.refused))


def _says(answer: str, words: str) -> bool:
    """Whole words: " I do not know." does not say "no"."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer.lower()) is not None


def coin_questions(count: int = COUNT) -> list[CoinQuestion]:
    rng = random.Random("coin questions")
    kinds = ["coin"] * 4 + ["yes/no"] * 2 + ["idle", "variables", "variables", "outside"]
    makers = {"variables": _variables, "outside": _outside}
    return [makers.get(kind, _coin)(rng, kind) for kind in (kinds[i % len(kinds)] for i in range(count))]


def _coin(rng: random.Random, kind: str) -> CoinQuestion:
    side = rng.randrange(2)
    told = [rng.choice(IDLE)] if rng.random() < 0.3 else []
    told.append(rng.choice(STARTS).format(s=SIDES[side]))
    for number in range(rng.randint(1, 8)):
        if kind == "idle" and number == 0:
            told += [rng.choice(IDLE) for _ in range(rng.randint(12, 20))]
        elif rng.random() < 0.2:
            told.append(rng.choice(IDLE))
        flips = rng.random() < 0.5
        told.append(rng.choice(FLIPS if flips else KEEPS).format(n=rng.choice(NAMES)))
        side ^= flips
    if kind != "yes/no":
        prompt = " ".join((*told, rng.choice(ASKS), "A:"))
        return CoinQuestion(kind, prompt, SIDES[side], SIDES[1 - side])
    asked = rng.randrange(2)
    prompt = " ".join((*told, rng.choice(YES_NO).format(s=SIDES[asked]), "A:"))
    return CoinQuestion(kind, prompt, "yes" if asked == side else "no", "no" if asked == side else "yes")


def _variables(rng: random.Random, kind: str) -> CoinQuestion:
    names = rng.sample("abcdefghkmnpqrtuvwxyz", rng.randint(1, 4))
    values = {name: rng.randint(0, 9) for name in names}
    listed = [f"{name} = {value}" for name, value in values.items()]
    told = [rng.choice(VALUE_STARTS).format(list=", ".join(listed))]
    for _ in range(rng.randint(1, 6)):
        name, step = rng.choice(names), rng.randint(1, 4)
        grows = values[name] + step <= 9 and (values[name] < step or rng.random() < 0.5)
        values[name] += step if grows else -step
        told.append(rng.choice(ADDS if grows else TAKES).format(v=name, n=step))
    asked = rng.choice(names)
    prompt = " ".join((*told, rng.choice(VALUE_ASKS).format(v=asked), "A:"))
    return CoinQuestion(kind, prompt, f"{values[asked]}.", "")


def _outside(rng: random.Random, kind: str) -> CoinQuestion:
    return CoinQuestion(kind, rng.choice(OUTSIDE), UNKNOWN, "")
