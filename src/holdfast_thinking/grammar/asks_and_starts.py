"""First sentences about a coin, and questions about its side, composed of parts.

{c}: the coin with its article, {C} with a capital letter; {s}: the side that is up, {x}: the other one; {N}:
people. A question has a form without a question mark, in small letters at its start.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar.verbs import phrases

shapes, starts, asks = read_words("coin_shapes"), read_words("coin_starts"), read_words("coin_asks")
PUTS = phrases(starts.PUTS)


def draw_start(rng: random.Random) -> str:
    if rng.random() < 0.85:
        return starts.draw("START", rng).replace(" ,", ",").replace(" .", ".")
    who, is_one = ("{N}", True) if rng.random() < 0.7 else (rng.choice(("I", "we", "you", "they")), False)
    forms = rng.choice(PUTS)
    said = forms.past if rng.random() < 0.4 else forms.third if is_one else forms.plural
    intro = f"{rng.choice(starts.INTROS)} " if rng.random() < 0.3 else ""
    spot = f" {rng.choice(starts.SPOTS)}" if rng.random() < 0.7 else ""
    return f"{intro}{who} {said}{spot}{starts.draw('SIDE', rng)}"


def after(text: str) -> str:
    return text if text[0] in ",." else f" {text}"


def vocabulary() -> list[str]:
    put = [each for forms in PUTS for each in forms[1:4]]
    first = [text[:1].upper() + text[1:] for text in (*starts.INTROS, *starts.TERSE, *asks.texts)]
    return [*put, *starts.texts, *asks.texts, *first]
