"""Words by kind, for sentences about anything. `RARE` and invented words have no tokens of their own:
a model reads them letter by letter, like any word it does not know. And filler: sentences that shift events to
every position of a chunk, and make texts long.
"""

import random

from holdfast_thinking.data.words import read_words

_filler = read_words("filler")
FEW_NAMES, SENTENCES = _filler.NAMES, _filler.SENTENCES
OPENINGS = (*(" ".join(_filler.ADVICE[:count]) + "." for count in range(1, 17)), *SENTENCES)
_BETWEEN = (*SENTENCES, *(f"{one} {other}" for one, other in zip(SENTENCES, SENTENCES[3:], strict=False)))
_WITHOUT_OPENING = 0.4  # share of texts
_RATES = (0.0, 0.0, 0.1, 0.5)  # share of events with a filler before them, for a text
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
    """Return a person: mostly a name, known or not, or what they are."""
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


def draw_opening(rng: random.Random) -> str:
    """Draw what is said before the first event, with the space after it; "" in some texts."""
    return "" if rng.random() < _WITHOUT_OPENING else f"{rng.choice(OPENINGS)} "


def draw_rate(rng: random.Random, long_texts: bool) -> float:
    """Draw how many events of a text have a filler before them: none, few or many."""
    return rng.choice(_RATES) if long_texts else 0.0


def draw_filler(rng: random.Random, rate: float) -> str:
    """Draw one or two sentences, with the space before them, or ""."""
    return f" {rng.choice(_BETWEEN)}" if rng.random() < rate else ""
