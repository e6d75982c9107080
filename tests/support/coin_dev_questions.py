"""300 development questions for `coin`: short, chatty, long-winded, in lower case, with wrong
punctuation. Training's lists have none of these templates; it may
compose a short one by chance. Settings are chosen with them; the questions of
`coin_questions.py` stay unseen until then.
"""

import random
from collections.abc import Callable

from support.coin_questions import SIDES, CoinQuestion
from support.coin_questions import UNKNOWN as OUTSIDE_ANSWER

COUNT = 300
SHORT_STARTS = (
    "coin is {s} up rn",
    "ok so theres a coin, {s}",
    "Coin on table ({s}).",
    "{s} up at the moment",
)
SHORT_FLIPS = (
    "{n} flips it",
    "then {n} turned it over",
    "{n} flipped",
    "flip it once",
    "{n} goes and flips the coin",
)
SHORT_KEEPS = (
    "{n} doesnt flip",
    "{n} didn't touch it",
    "{n} leaves it",
    "{n} just sat there",
    "dont flip it",
)
SHORT_ASKS = ("whats it at now", "side???", "so heads or tails", "what side is it on now")
LONG_STARTS = (
    "Let me describe the situation: my grandmother's coin is resting on a wooden desk, and if you looked down at"
    " it you would read {s}.",
    "It was a rainy evening in November when we put the coin between us on the carpet, making certain that {s}"
    " faced the ceiling.",
    "Please keep in mind that the coin, which is quite old and rather dirty, begins its life in this puzzle with"
    " {s} pointing upward.",
)
LONG_FLIPS = (
    "Having finished a large bowl of cereal, {n} stretches out an arm and, humming a tune, turns the coin over.",
    "{n}, whose train has been cancelled, kills some time by flipping the coin exactly one time.",
    "As nobody seems to mind, {n} slowly lifts the coin between thumb and finger and sets it down again on its"
    " opposite side.",
    "Not being able to resist, {n} gives in and flips the coin.",
)
LONG_KEEPS = (
    "{n} has been warned by a doctor about excitement and therefore keeps well away from the coin.",
    "Although {n} was very keen on flipping the coin, the telephone rang and nothing came of it.",
    "{n} bends down to study the engraving for a minute or so, then goes back to the newspaper.",
    "For a moment it seemed that {n} might flip the coin, but in fact it was only a yawn.",
)
LONG_ASKS = (
    "Taking all of these events into account, which of the two sides is facing the ceiling?",
    "Having read the above with care, would you kindly state what the coin is showing at present?",
    "If somebody asked you to name the upper side, what would your reply be?",
)
LIST_FLIPS = ("{n}: flip", "{n}: flips the coin", "{n}: turns it over", "{n} -> flip")
LIST_KEEPS = ("{n}: no flip", "{n}: does nothing", "{n}: leaves it alone", "{n} -> pass")
YES_NO = (
    "would i be right to call it {s}?",
    "i reckon it's {s} now, correct?",
    "so is {s} facing the ceiling?",
    "Can we agree that it's {s}?",
    "is it {s} again",
)
SET_EVENTS = (
    "{n} fiddles with it until it reads {s}.",
    "{n} presses it down so it's {s} side up.",
    "Then {n} decides that {s} looks nicer and puts it that way.",
)
PEOPLE = (
    "Zbigniew",
    "Aoife",
    "Keisha",
    "Old Pete",
    "grandma",
    "Mr. Tanaka",
    "Lu",
    "Svetlana",
    "the plumber",
    "Ximena",
    "DJ Ron",
)
VALUE_STARTS = ("ok {list}", "Got {list}.", "Bag {list}.", "my variables are {list}.")
VALUE_ADDS = (
    "{v} went up {n}.",
    "{v} got {n} bigger.",
    "throw {n} more on {v}.",
    "{v} plus {n} is the new {v}.",
)
VALUE_TAKES = (
    "{v} went down {n}.",
    "{v} got {n} smaller.",
    "knock {n} off {v}.",
    "{v} minus {n} is the new {v}.",
)
VALUE_ASKS = (
    "{v} is what now?",
    "so whats {v}",
    "how much have we got in {v}?",
    "Kindly report the current {v}.",
)
OUTSIDE = (
    "whats the best pizza topping", "can u do my homework", "Sing happy birthday to my nephew.", "is tokyo bigger than osaka",
    "How do submarines breathe?", "Recite a limerick.", "SELECT * FROM users;", "i cant sleep, any tips?", "lol",
    "Which wine goes with salmon?", "Was Caesar left-handed?", "convert 5 miles to km", "Rephrase: I ain't coming.",
    "who won the world cup in 2014", "My laptop won't boot, help", "Do fish feel pain?",
)  # fmt: skip


def coin_dev_questions(count: int = COUNT) -> list[CoinQuestion]:
    rng = random.Random("coin development questions")
    makers: list[Callable[[random.Random], CoinQuestion]] = [_short, _long, _short, _list, _set, _variables]
    made = [makers[index % len(makers)](rng) for index in range(count * 9 // 10)]
    return made + [_outside(rng) for _ in range(count - len(made))]


def _short(rng: random.Random) -> CoinQuestion:
    gap = rng.choice((". ", ", ", " ... ", "\n", "; "))
    side = rng.randrange(2)
    told, side = _events(
        rng, side, [rng.choice(SHORT_STARTS).format(s=SIDES[side])], SHORT_FLIPS, SHORT_KEEPS, 5
    )
    return _asked(rng, gap.join(told) + rng.choice((". ", "\n", " ")), side, SHORT_ASKS, "short")


def _long(rng: random.Random) -> CoinQuestion:
    side = rng.randrange(2)
    told, side = _events(
        rng, side, [rng.choice(LONG_STARTS).format(s=SIDES[side])], LONG_FLIPS, LONG_KEEPS, 4
    )
    return _asked(rng, " ".join(told) + " ", side, LONG_ASKS, "long")


def _list(rng: random.Random) -> CoinQuestion:
    side = rng.randrange(2)
    told, side = _events(rng, side, [f"Coin: {SIDES[side]}"], LIST_FLIPS, LIST_KEEPS, 8)
    return _asked(rng, "\n".join(told) + "\n", side, SHORT_ASKS, "list")


def _set(rng: random.Random) -> CoinQuestion:
    """Some events leave a given side up."""
    side = rng.randrange(2)
    told, side = _events(
        rng, side, [rng.choice(LONG_STARTS).format(s=SIDES[side])], LONG_FLIPS, LONG_KEEPS, 2
    )
    side = rng.randrange(2)
    told.append(rng.choice(SET_EVENTS).format(n=rng.choice(PEOPLE), s=SIDES[side]))
    told, side = _events(rng, side, told, LONG_FLIPS, LONG_KEEPS, 2)
    return _asked(rng, " ".join(told) + " ", side, LONG_ASKS, "set")


def _events(
    rng: random.Random, side: int, told: list[str], flips: tuple[str, ...], keeps: tuple[str, ...], most: int
) -> tuple[list[str], int]:
    for _ in range(rng.randint(1, most)):
        is_flip = rng.random() < 0.5
        told = [*told, rng.choice(flips if is_flip else keeps).format(n=rng.choice(PEOPLE))]
        side ^= is_flip
    return told, side


def _asked(rng: random.Random, told: str, side: int, asks: tuple[str, ...], kind: str) -> CoinQuestion:
    if rng.random() < 0.65:
        return CoinQuestion(kind, f"{told}{rng.choice(asks)} A:", SIDES[side], SIDES[1 - side])
    asked = rng.randrange(2)
    right, wrong = ("yes", "no") if asked == side else ("no", "yes")
    return CoinQuestion(kind, f"{told}{rng.choice(YES_NO).format(s=SIDES[asked])} A:", right, wrong)


def _variables(rng: random.Random) -> CoinQuestion:
    names = rng.sample("abdefghkmnpqrtuvwxyz", rng.randint(1, 3))
    values = {name: rng.randint(0, 9) for name in names}
    listed = rng.choice((", ", " and ", "; ")).join(f"{name} = {value}" for name, value in values.items())
    told = [rng.choice(VALUE_STARTS).format(list=listed)]
    for _ in range(rng.randint(1, 5)):
        name, step = rng.choice(names), rng.randint(1, 4)
        grows = values[name] + step <= 9 and (values[name] < step or rng.random() < 0.5)
        values[name] += step if grows else -step
        told.append(rng.choice(VALUE_ADDS if grows else VALUE_TAKES).format(v=name, n=step))
    asked = rng.choice(names)
    prompt = " ".join((*told, rng.choice(VALUE_ASKS).format(v=asked), "A:"))
    return CoinQuestion("variables", prompt, f"{values[asked]}.", "")


def _outside(rng: random.Random) -> CoinQuestion:
    return CoinQuestion("outside", f"{rng.choice(OUTSIDE)} A:", OUTSIDE_ANSWER, "")
