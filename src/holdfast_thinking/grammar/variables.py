"""Statements and questions about variables, composed of parts: who does it, a verb in a tense, by how much.

{v}: the variable; {n}: a number or another variable; {a}: another variable; {N}: a person.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar.verbs import Forms, phrases

shapes, parts = read_words("variables"), read_words("variable_phrases")
LETTERS = "abcdefghjkmnpqrstuvwxyz"
CAPITALS = "BCDEFGHKMNPQRSTVWXYZ"
RAISE = phrases(parts.RAISE)
LOWER = phrases(parts.LOWER)
RISE = phrases(parts.RISE)
FALL = phrases(parts.FALL)
BECOME_SO = phrases(parts.BECOME_SO)
PUT = phrases(parts.PUT)


def draw_change(rng: random.Random, adds: bool) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(shapes.ADDS if adds else shapes.TAKES)
    if kind < 0.7:
        return _done(rng.choice(RAISE if adds else LOWER), rng)
    if kind < 0.85:
        return f"{{v}} {_tense(rng.choice(RISE if adds else FALL), rng)}"
    if kind < 0.9:
        return f"{{v}} {_tense(rng.choice(BECOME_SO), rng)} {{n}} {rng.choice(parts.LARGER if adds else parts.SMALLER)}"
    return rng.choice(parts.MORE if adds else parts.LESS)


def draw_set(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(shapes.SETS)
    return _done(rng.choice(PUT), rng) if kind < 0.8 else rng.choice(parts.BECOME)


def either(rng: random.Random, one: tuple[str, ...], other: tuple[str, ...]) -> str:
    return rng.choice(one if rng.random() < 0.5 else other)


def _done(forms: Forms, rng: random.Random) -> str:
    who = rng.choice(parts.WHO)
    if who in ("", "let's"):
        return f"{who} {forms.base}".strip()
    return f"{who} {forms.past if rng.random() < 0.3 else forms.third if who in ('{N}', 'he', 'she') else forms.plural}"


def _tense(forms: Forms, rng: random.Random) -> str:
    done = (*(forms.third,) * 3, *(forms.past,) * 2, f"has {forms.participle}", f"will {forms.base}")
    return rng.choice((*done, f"is {forms.ing}", f"then {forms.third}", f"now {forms.third}"))


def vocabulary() -> list[str]:
    done = [text for forms in (*RAISE, *LOWER, *PUT) for text in forms[:4]]
    first = [
        text[:1].upper() + text[1:] for text in (*parts.texts, *(f.base for f in (*RAISE, *LOWER, *PUT)))
    ]
    return [*parts.texts, *done, *first, *(text for forms in (*RISE, *FALL, *BECOME_SO) for text in forms)]
