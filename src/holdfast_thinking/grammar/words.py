"""Words by kind, for sentences about anything. `RARE` and invented words have no tokens of their own:
a model reads them letter by letter, like any word it does not know.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.tasks.filler import NAMES as FEW_NAMES

_words = read_words("words")
NOUNS, ADJECTIVES, COMMON, RARE = _words.NOUNS, _words.ADJECTIVES, _words.COMMON, _words.RARE
ADVERBS, PREPOSITIONS, PLACES, TIMES = _words.ADVERBS, _words.PREPOSITIONS, _words.PLACES, _words.TIMES
TITLES, RELATIONS, JOBS = _words.TITLES, _words.RELATIONS, _words.JOBS
NAMES = FEW_NAMES + _words.MORE_NAMES


def invented_words(count: int) -> tuple[str, ...]:
    rng = random.Random("invented words")

    def syllable(first: bool) -> str:
        onset = "" if first and rng.random() < 0.2 else rng.choice(_words.ONSETS)
        return onset + rng.choice(_words.VOWELS) + rng.choice(_words.CODAS)

    return tuple(
        "".join(syllable(not place) for place in range(rng.choice((1, 2, 2, 2, 3, 3, 4))))[:11]
        for _ in range(count)
    )


INVENTED = invented_words(4000)


def draw_name(rng: random.Random) -> str:
    """A person: mostly a name, known or not, or what they are."""
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NAMES)
    if kind < 0.78:
        return rng.choice(INVENTED).capitalize()
    if kind < 0.81:
        return rng.choice(RARE).capitalize()
    named = rng.choice(NAMES) if rng.random() < 0.5 else rng.choice(INVENTED).capitalize()
    if kind < 0.86:
        return f"{rng.choice(TITLES)} {named}"
    if kind < 0.92:
        article = rng.choice(("the", "the", "the", "a", "this", "our"))
        quality = f"{rng.choice(ADJECTIVES)} " if rng.random() < 0.25 else ""
        return f"{article} {quality}{rng.choice(JOBS if rng.random() < 0.85 else NOUNS)}"
    if kind < 0.95:
        owner = rng.choice(("", "my ", "my ", "his ", "her ", "your ", f"{named}'s "))
        return f"{owner}{rng.choice(RELATIONS)}"
    if kind < 0.98:
        return named.lower()
    return f"{named} {rng.choice(INVENTED).capitalize()}"


def fill(shape: str, rng: random.Random) -> str:
    """Nouns ({n}, {m}), adjectives ({a}, {b}) and people ({M}: each another; {N}: always the same) in their places."""
    for slot, kind in (("{n}", NOUNS), ("{m}", NOUNS), ("{a}", ADJECTIVES), ("{b}", ADJECTIVES)):
        while slot in shape:
            shape = shape.replace(slot, rng.choice(kind), 1)
    while "{M}" in shape:
        shape = shape.replace("{M}", draw_name(rng), 1)
    return shape.replace("{N}", draw_name(rng)) if "{N}" in shape else shape


def noun_phrase(rng: random.Random) -> str:
    kind = rng.random()
    noun = rng.choice(NOUNS if kind < 0.7 else COMMON if kind < 0.85 else RARE if kind < 0.95 else INVENTED)
    return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun
