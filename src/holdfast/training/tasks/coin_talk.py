"""A coin in the words people use: synonyms, negations, pronouns, any names, any first sentence.

    There's a quarter on the bar, heads up. Bob tosses it over. She only looks at it. Is it still heads up?
                                                           tails                tails
    No, tails.

The thought after an event is the side that is up; the side at the start is only remembered. A
sentence without the coin has no thought. A yes/no question is answered with yes or no and the side.
Without a first side the answer is " I do not know."
"""

import random
from collections.abc import Sequence

from holdfast.training.tasks.filler import NAMES, byte_names
from holdfast.training.tasks.idle_talk import idle_sentence, opening
from holdfast.training.tasks.text_examples import QUESTION_END, TextExample, ThoughtStep

SIDES = ("heads", "tails")
UNKNOWN = " I do not know."
_COINS = ("coin", "penny", "quarter", "dime", "nickel", "euro", "silver coin", "gold coin", "old coin")
# {c}: the coin with its article, at first "a coin"; {s}: the side.
STARTS = (
    "{C} shows {s}.",
    "{C} lies {s} up.",
    "{C} is {s} up.",
    "{C} is lying on the table, {s} up.",
    "{C} starts {s} up.",
    "{C} starts with {s} on top.",
    "{C} starts as {s}.",
    "{C} is showing {s}.",
    "{C}'s state is {s}.",
    "{C} rests on the floor with {s} facing up.",
    "{C} sits on the desk, {s} side up.",
    "{C} has landed on {s}.",
    "{C} came up {s}.",
    "{C} is on {s}.",
    "{C} is put on the table with the {s} side up.",
    "{C} has {s} up.",
    "{C} was placed {s} up.",
    "{C} faces {s} up at the start.",
    "There is {c} on the table. It shows {s}.",
    "There is {c} here, {s} up.",
    "There's {c} on the shelf. It is {s} up.",
    "On the table there is {c} that shows {s}.",
    "On the counter lies {c}, and {s} is up.",
    "At first {c} is {s}.",
    "At the beginning {c} shows {s}.",
    "To begin with, {c} is {s} up.",
    "In the beginning {s} is up on {c}.",
    "We have {c}. Its side is {s}.",
    "We put {c} down {s} up.",
    "I have {c} here. It is {s}.",
    "I place {c} on the table. {S} is up.",
    "Look at {c}: it shows {s}.",
    "Here is {c}. {S} is on top.",
    "Imagine {c} lying {s} up.",
    "Suppose {c} shows {s}.",
    "Take {c} that is {s} up.",
    "{N} puts {c} on the table, {s} up.",
    "{N} has {c}. It shows {s}.",
    "{N} finds {c} lying {s} up.",
    "{N} lays {c} down with {s} on top.",
)
# Forms of a verb and what follows them: base form, present, past, participle, -ing form.
_Verb = tuple[str, str, str, str, str]
_VERBS = (
    (("flip", "flips", "flipped", "flipped", "flipping"), ("{o}", "{o} over")),
    (("toss", "tosses", "tossed", "tossed", "tossing"), ("{o}", "{o} over")),
    (
        ("turn", "turns", "turned", "turned", "turning"),
        ("{o} over", "over {O}", "{o} around", "{o} upside down", "{o} to the other side"),
    ),
    (("invert", "inverts", "inverted", "inverted", "inverting"), ("{o}",)),
    (("reverse", "reverses", "reversed", "reversed", "reversing"), ("{o}",)),
    (("roll", "rolls", "rolled", "rolled", "rolling"), ("{o} over",)),
    (("put", "puts", "put", "put", "putting"), ("{o} on its other side", "{o} the other way up")),
    (("switch", "switches", "switched", "switched", "switching"), ("{o} to the other side",)),
    (("give", "gives", "gave", "given", "giving"), ("{o} a flip", "{o} a turn")),
    (("spin", "spins", "spun", "spun", "spinning"), ("{o} over",)),
)


def _forms(verb: _Verb, rest: str) -> _Verb:
    """The words that decide the event end at the bar. A participle has no object."""
    alone = rest.replace("{o}", "").replace("{O}", "")
    base, present, past, participle, ing = verb
    passive = " ".join((participle, alone)).strip().replace("  ", " ")
    return (f"{base} {rest}|", f"{present} {rest}|", f"{past} {rest}|", f"{passive}|", f"{ing} {rest}")


FLIPS = tuple(_forms(verb, rest) for verb, rests in _VERBS for rest in rests)
_NOT = (
    " doesn't {b}", " does not {b}", " didn't {b}", " did not {b}", " never {p}", " won't {b}", " will not {b}",
    " refuses to {b}", " refused to {b}", " declines to {b}", " forgets to {b}", " forgot to {b}",
    " decides not to {b}", " decided not to {b}", " chooses not to {b}", " prefers not to {b}",
    " is not allowed to {b}", " isn't allowed to {b}", " cannot {b}", " can't {b}", " could not {b}",
    " has not {t} {o}|", " hasn't {t} {o}|", " is not {g}|", " isn't {g}|", " avoids {g}|", " keeps from {g}|",
    " stops before {g}|", " thinks about {g}|", " dreams of {g}|", " talks about {g}|", " wants to {b} but doesn't|",
    " would like to {b} but does not|", " is asked to {b} but refuses|", " is about to {b} but stops|",
    " nearly {p0} but then doesn't|", " leaves without {g}|", " only thinks about {g}|",
)  # fmt: skip
KEEPS = (
    " leaves {o} alone|", " left {o} alone|", " leaves {o} as it is|", " lets {o} be|", " lets {o} lie|",
    " lets {o} stay as it is|", " only looks at {o}|", " just looks at {o}|", " looked at {o}|", " looks at {o}|",
    " watches {o}|", " just watches|", " only watches {o}|", " stares at {o}|", " does nothing to {o}|",
    " does nothing|", " did nothing|", " does nothing with {o}|", " keeps {o} as it is|", " does not touch {o}|",
    " doesn't touch {o}|", " did not touch {o}|", " never touches {o}|", " ignores {o}|", " walks past {o}|",
    " admires {o}|", " points at {o}|", " smiles at {o}|", " passes by {o}|", " merely glances at {o}|",
    " glances at {o}|", " holds still|", " sits beside {o}|", " takes a picture of {o}|", " dusts {o}|",
    " sees {o}|", " inspects {o}|", " studies {o}|", " photographs {o}|", " stays away from {o}|",
)  # fmt: skip
_AGAIN = (
    "",
    "",
    "",
    "",
    " again",
    " once",
    " once more",
    " quickly",
    " slowly",
    " with care",
    " at once",
    " too",
)
_LEADS = (
    "", "", "", "", "", "", "Then", "Next,", "After that", "Later", "Now", "Soon", "Finally,", "A moment later",
    "After a while", "In the meantime", "Meanwhile", "Without a word", "First", "Before lunch", "At noon",
    "The next day", "And then", "But then", "So",
)  # fmt: skip
_SUBJECTS = (
    "The teacher", "My sister", "My brother", "A stranger", "The old man", "The waiter", "Her friend", "His mother",
    "The boy", "The girl", "A child", "The woman in the corner", "A man", "Someone", "Somebody", "The dealer", "I", "We",
    "You", "One of them", "The doctor", "The cook",
)  # fmt: skip
_PRONOUNS = ("He", "She", "They", "It is then that he", "She", "He")
_PLURAL = ("I", "We", "You", "They")
_LOWERED = set(" ".join((*_SUBJECTS, *_PRONOUNS, "Nobody No None Not Neither")).split()) - {"I"}
_NOBODY = ("Nobody", "No one", "None of them", "Not one of us")
_PASSIVE = (
    "{C} is {t}",
    "{C} gets {t}",
    "{C} was {t}",
    "{C} has been {t}",
    "It is {t}",
    "It gets {t}",
    "It was {t}",
)
_PASSIVE_NOT = ("{C} is not {t}", "{C} isn't {t}", "{C} was not {t}", "It is not {t}", "It never gets {t}")
ASKS = (
    "What's the state?", "What is the state?", "What is the coin's state?", "What is the state of the coin?",
    "What is the state now?", "Does the coin show heads or tails?", "Which side is up?", "Which side is up now?",
    "Which side is on top?", "Which side does it show?", "Which side faces up?", "What side is showing?",
    "What does the coin show?", "What does it show now?", "What does it show at the end?", "Heads or tails?",
    "Is it heads or tails?", "Is the coin heads or tails now?", "How does the coin lie?", "How does it lie now?",
    "What is up, heads or tails?", "What is the coin showing?", "In the end, which side is up?", "So what is up?",
    "Which face is up?", "Which side can we see?", "What do we see on the coin?", "What is the final state?",
    "Tell me the side that is up.", "Say which side is up.", "Which side of it is up at the end?",
    "Now what is the side of the coin?", "Is heads up or tails?", "Tell me the state of the coin.",
)  # fmt: skip
YES_NO = (
    "Is the coin still {s} up?", "Is it still {s} up?", "Is it {s}?", "Is it {s} up?", "Is the coin {s}?",
    "Is the coin {s} up?", "Is {s} up?", "Is {s} still up?", "Does it show {s}?", "Does the coin show {s}?",
    "Does it still show {s}?", "Does the coin still show {s}?", "Is the coin showing {s} now?", "Is {s} on top?",
    "Is {s} on top now?", "Is the {s} side up?", "Do we see {s}?", "Can you see {s}?", "Is it on {s} now?",
    "Does it lie {s} up?", "In the end, is it {s}?", "Is the side that is up {s}?",
)  # fmt: skip
_ANSWER_MARKS = (QUESTION_END,) * 8 + (" Answer:", "")


class CoinTalk:
    name = "coin-talk"

    def __init__(self) -> None:
        self._unusual = byte_names(2000)

    def words(self) -> list[str]:
        """Texts with all words, for a tokenizer."""
        verbs = [text.replace("|", "").format(o="it", O="it") for each in FLIPS for text in each]
        shapes = [
            *STARTS,
            *_NOT,
            *KEEPS,
            *_AGAIN,
            *_LEADS,
            *_SUBJECTS,
            *_PRONOUNS,
            *_NOBODY,
            *_PASSIVE,
            *_PASSIVE_NOT,
        ]
        plain = [text.replace("|", "") for text in (*shapes, *ASKS, *YES_NO, *_COINS, *SIDES, "Heads Tails")]
        return [
            *verbs,
            *plain,
            *NAMES,
            " Yes, No, and but so does neither nor twice",
            UNKNOWN,
            *_ANSWER_MARKS,
        ]

    def example(self, rng: random.Random, events: int) -> TextExample:
        story = _Story(rng, self._unusual)
        story.open()
        has_start = rng.random() >= 0.03
        if has_start:
            story.start()
        idle = rng.choice((0.0, 0.0, 0.1, 0.4, 0.7))
        stretch = rng.randrange(events) if rng.random() < 0.1 else -1
        for number in range(events):
            for _ in range(rng.randint(8, 24) if number == stretch else int(rng.random() < idle)):
                story.say(idle_sentence(rng))
            story.event()
        return story.ask(has_start)


class _Story:
    """A text as it is told."""

    def __init__(self, rng: random.Random, unusual: Sequence[str]) -> None:
        self._rng, self._unusual = rng, unusual
        self._text = ""
        self._steps: list[ThoughtStep] = []
        self._side, self._known = rng.randrange(2), False
        self._coin = "coin" if rng.random() < 0.7 else rng.choice(_COINS)
        self._past = rng.random() < 0.3

    def say(self, sentence: str) -> None:
        self._text += f" {sentence}" if self._text else sentence

    def open(self) -> None:
        if self._rng.random() < 0.5:
            self.say(opening(self._rng))

    def start(self) -> None:
        side = SIDES[self._side]
        a = "an" if self._coin[0] in "aeiou" else "a"
        coin = self._rng.choice((f"{a} {self._coin}", f"the {self._coin}"))
        self.say(
            self._rng.choice(STARTS).format(
                C=coin.capitalize(), c=coin, s=side, S=side.capitalize(), N=self._name()
            )
        )
        self._known = True
        self._steps.append(ThoughtStep(len(self._text) - 2, "", f" {side}"))

    def event(self) -> None:
        """One sentence with one or two events."""
        kind, lead = self._rng.random(), self._rng.choice(_LEADS)
        if kind < 0.06:
            self._passive()
        elif kind < 0.10:
            self._act(lead, self._rng.choice(_NOBODY), self._verb(self._rng.choice(FLIPS)), is_flip=False)
        elif kind < 0.16:
            self._pair(lead)
        elif self._rng.random() < 0.55:
            end = self._rng.choice(_AGAIN)
            who = self._subject(lead)
            self._act(lead, who, self._verb(self._rng.choice(FLIPS), who), is_flip=True, end=end)
            if not end and self._rng.random() < 0.04:
                self._text = self._text.removesuffix(".") + " twice."
                self._think(len(self._text) - 2, is_flip=True)
        else:
            self._act(lead, self._subject(lead), self._keep(), is_flip=False)

    def _pair(self, lead: str) -> None:
        """Two people in one sentence: "Ann flips it and so does Bob." """
        kind, who, other = self._rng.randrange(4), self._name(), self._name()
        verb = self._verb(self._rng.choice(FLIPS))
        if kind == 3:
            self._act(lead, f"Neither {who} nor {other}", verb, is_flip=False)
            return
        self._act(lead, who, verb, is_flip=True)
        self._text = self._text.removesuffix(".")
        more = (f" and so does {other}", f", but {other} doesn't", f" and then {other} does the same")[kind]
        self._text += more
        self._think(len(self._text) - 1, is_flip=kind != 1)
        self._text += "."

    def _passive(self) -> None:
        is_flip = self._rng.random() < 0.6
        shape = self._rng.choice(_PASSIVE if is_flip else _PASSIVE_NOT)
        coin = f"The {self._coin}"
        sentence = shape.format(C=coin, t=self._rng.choice(FLIPS)[3])
        head, _, tail = sentence.partition("|")
        self.say(head)
        self._think(len(self._text) - 1, is_flip)
        by = f" by {self._name()}" if self._rng.random() < 0.5 else ""
        self._text += f"{tail}{by}."

    def _act(self, lead: str, who: str, verb: str, *, is_flip: bool, end: str = "") -> None:
        if lead and who.split()[0] in _LOWERED:
            who = who[0].lower() + who[1:]
        head, _, tail = f"{who}{verb}".partition("|")
        self.say(f"{lead} {head}" if lead else head)
        self._think(len(self._text) - 1, is_flip)
        self._text += f"{tail}{end}."

    def _think(self, at: int, is_flip: bool) -> None:
        self._side ^= is_flip
        if self._known:
            side = f" {SIDES[self._side]}"
            self._steps.append(ThoughtStep(at, side, side))

    def _object(self) -> str:
        return "it" if self._rng.random() < 0.5 else f"the {self._coin}"

    def _verb(self, verb: _Verb, who: str = "") -> str:
        present = 0 if who in _PLURAL else 1
        return " " + verb[2 if self._past else present].format(o=self._object(), O=f"the {self._coin}")

    def _keep(self) -> str:
        thing = self._object()
        if self._rng.random() < 0.4:
            return self._rng.choice(KEEPS).format(o=thing)
        base, present, _, participle, ing = self._rng.choice(FLIPS)
        plain, done = present.replace("|", ""), participle.replace("|", "")
        filled = {"b": base, "p": present, "p0": plain, "t": done, "g": ing}
        shape = self._rng.choice(_NOT)
        if "{t}" in shape and " " in done:
            shape = " doesn't {b}"
        text = shape.format(**filled, o=thing) if "{o}" in shape else shape.format(**filled)
        text = text.format(o=thing, O=f"the {self._coin}")
        return text if text.count("|") < 2 else text.replace("|", "", 1)

    def _subject(self, lead: str) -> str:
        kind = self._rng.random()
        if kind < 0.6:
            return self._name()
        return (
            self._rng.choice(_PRONOUNS[:3] if lead else _PRONOUNS)
            if kind < 0.8
            else self._rng.choice(_SUBJECTS)
        )

    def _name(self) -> str:
        return self._rng.choice(NAMES) if self._rng.random() < 0.75 else self._rng.choice(self._unusual)

    def ask(self, has_start: bool) -> TextExample:
        side = SIDES[self._side]
        if self._rng.random() < 0.4:
            asked = self._rng.choice(SIDES)
            question = self._rng.choice(YES_NO).format(s=asked)
            answer = f" {'Yes' if asked == side else 'No'}, {side}."
        else:
            question, answer = self._rng.choice(ASKS), f" {side}."
        question = question.replace("coin", self._coin) if self._rng.random() < 0.5 else question
        prompt = f"{self._text} {question}{self._rng.choice(_ANSWER_MARKS)}"
        return TextExample(prompt, answer if has_start else UNKNOWN, tuple(self._steps))
