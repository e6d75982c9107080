"""Verb phrases in all forms, from the base form.

    "turn {o} over"              turns {o} over, turned {o} over, turning {o} over
    "wait and *see"              waits and sees, waited and saw, waiting and seeing
    "only *look"                 only looks, only looked, only looking

The first word is a verb unless it is an adverb or a modal verb. Words with a star are verbs too.
"""

from typing import NamedTuple

from holdfast_thinking.data.words import read_words

_verbs = read_words("verbs")
_IRREGULAR = {forms.split()[0]: forms.split() for forms in _verbs.IRREGULAR}
_NO_VERBS = ("only", "just", "simply", "merely", "actually", "would", "finally", "but", ",")
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
    return verb + verb[-1] + "ed" if verb in _verbs.DOUBLED else verb + "ed"


def _ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee") and verb != "be":
        return verb[:-1] + "ing"
    return verb + verb[-1] + "ing" if verb in _verbs.DOUBLED else verb + "ing"


def _ends_in_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2] not in "aeiou"
