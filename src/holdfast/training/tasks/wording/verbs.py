"""Verb phrases in all forms, from the base form.

    "turn {o} over"              turns {o} over, turned {o} over, turning {o} over
    "wait and *see"              waits and sees, waited and saw, waiting and seeing
    "only *look"                 only looks, only looked, only looking

The first word is a verb unless it is an adverb or a modal verb. Words with a star are verbs too.
"""

from typing import NamedTuple

# Base form, past, participle.
_IRREGULAR = {
    words.split()[0]: words.split()
    for words in [
        "be was been",
        "bring brought brought",
        "break broke broken",
        "bend bent bent",
        "buy bought bought",
        "build built built",
        "catch caught caught",
        "choose chose chosen",
        "come came come",
        "cut cut cut",
        "do did done",
        "draw drew drawn",
        "drink drank drunk",
        "drive drove driven",
        "eat ate eaten",
        "fall fell fallen",
        "feed fed fed",
        "feel felt felt",
        "find found found",
        "forget forgot forgotten",
        "get got got",
        "give gave given",
        "go went gone",
        "grow grew grown",
        "hang hung hung",
        "have had had",
        "hear heard heard",
        "hide hid hidden",
        "hit hit hit",
        "hold held held",
        "keep kept kept",
        "know knew known",
        "lay laid laid",
        "lead led led",
        "lean leaned leaned",
        "leave left left",
        "lend lent lent",
        "let let let",
        "lie lay lain",
        "lose lost lost",
        "make made made",
        "mean meant meant",
        "meet met met",
        "pay paid paid",
        "put put put",
        "read read read",
        "ride rode ridden",
        "ring rang rung",
        "rise rose risen",
        "run ran run",
        "say said said",
        "see saw seen",
        "sell sold sold",
        "send sent sent",
        "set set set",
        "shake shook shaken",
        "shine shone shone",
        "show showed shown",
        "shut shut shut",
        "sing sang sung",
        "sit sat sat",
        "sleep slept slept",
        "speak spoke spoken",
        "spend spent spent",
        "spin spun spun",
        "stand stood stood",
        "steal stole stolen",
        "sweep swept swept",
        "swear swore sworn",
        "swim swam swum",
        "take took taken",
        "teach taught taught",
        "tell told told",
        "think thought thought",
        "throw threw thrown",
        "undo undid undone",
        "wake woke woken",
        "wear wore worn",
        "win won won",
        "write wrote written",
    ]
}
_DOUBLED = frozenset(
    [
        "flip",
        "stop",
        "grab",
        "tap",
        "pat",
        "nod",
        "step",
        "rub",
        "drop",
        "plan",
        "chat",
        "hum",
        "tip",
        "knit",
        "shrug",
        "jog",
        "spin",
        "run",
        "sit",
        "set",
        "put",
        "cut",
        "get",
        "let",
        "hit",
        "swap",
        "trip",
        "slip",
        "wrap",
        "pop",
        "skip",
        "clap",
        "beg",
        "shut",
        "wag",
        "win",
        "swim",
        "drag",
        "dip",
        "zip",
        "pin",
        "hug",
        "forget",
        "regret",
    ]
)
_NO_VERBS = frozenset(["only", "just", "simply", "merely", "actually", "would", "finally"])
_IRREGULAR_THIRD = {"be": "is", "have": "has", "do": "does", "go": "goes", "undo": "undoes"}


class Forms(NamedTuple):
    """A phrase with its verb in each form: flip, (they) flip, flips, flipped, (has) flipped, flipping."""

    base: str
    plural: str
    third: str
    past: str
    participle: str
    ing: str


def inflect(verb: str) -> Forms:
    plural = "are" if verb == "be" else verb
    if verb in _IRREGULAR:
        _, past, participle = _IRREGULAR[verb]
    else:
        past = participle = _past(verb)
    return Forms(verb, plural, _third(verb), past, participle, _ing(verb))


def phrase(text: str) -> Forms:
    """All forms of a phrase in the base form."""
    words = text.split(" ")
    verbs = [place for place, word in enumerate(words) if word.startswith("*")]
    if words[0] not in _NO_VERBS and 0 not in verbs:
        verbs.append(0)
    forms = []
    for number in range(len(Forms._fields)):
        said = list(words)
        for place in verbs:
            said[place] = inflect(words[place].removeprefix("*"))[number]
        forms.append(" ".join(said))
    return Forms(*forms)


def phrases(texts: tuple[str, ...]) -> tuple[Forms, ...]:
    return tuple(phrase(each) for each in texts)


def _third(verb: str) -> str:
    if verb in _IRREGULAR_THIRD:
        return _IRREGULAR_THIRD[verb]
    if verb.endswith(("s", "x", "z", "ch", "sh")):
        return verb + "es"
    return verb[:-1] + "ies" if _ends_in_y(verb) else verb + "s"


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if _ends_in_y(verb):
        return verb[:-1] + "ied"
    return verb + verb[-1] + "ed" if verb in _DOUBLED else verb + "ed"


def _ing(verb: str) -> str:
    if verb == "lie":
        return "lying"
    if verb.endswith("e") and not verb.endswith("ee") and verb != "be":
        return verb[:-1] + "ing"
    return verb + verb[-1] + "ing" if verb in _DOUBLED else verb + "ing"


def _ends_in_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2] not in "aeiou"
