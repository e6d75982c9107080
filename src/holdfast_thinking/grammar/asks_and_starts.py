"""First sentences about a coin, and questions about its side, composed of parts.

{c}: the coin with its article, {C} with a capital letter; {s}: the side that is up, {x}: the other one; {N}:
people. A question has a form without a question mark, in small letters at its start.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.verbs import phrases

shapes, starts, asks = read_words("coin_shapes"), read_words("coin_starts"), read_words("coin_asks")
PUTS = phrases(starts.PUTS)


def draw_start(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(shapes.STARTS)
    if kind < 0.42:
        return f"{_intro(rng, 0.2)}{rng.choice(starts.TERSE)}"
    if kind < 0.46:
        return _among_words(rng)
    spot = f" {rng.choice(starts.SPOTS)}" if rng.random() < 0.7 else ""
    if kind < 0.85:
        intro = _intro(rng, 0.4)
        coin = "{c}" if intro else "{C}"
        aside = after(rng.choice(starts.ASIDES)) if rng.random() < 0.25 else ""
        if rng.random() < 0.15:
            does = f"{rng.choice(starts.OPENS)} {rng.choice(starts.STORIES)}"
        else:
            does = rng.choice(starts.STATES) + spot
        told = f"{intro}{coin}{aside} {does}{_side(rng)}"
    else:
        who, put = (
            ("{N}", "third") if rng.random() < 0.7 else (rng.choice(("I", "we", "you", "they")), "plural")
        )
        forms = rng.choice(PUTS)
        said = forms.past if rng.random() < 0.4 else forms.third if put == "third" else forms.plural
        told = f"{_intro(rng, 0.3)}{who} {said}{spot}{_side(rng)}"
    return told


def after(text: str) -> str:
    return text if text[0] in ",." else f" {text}"


def _intro(rng: random.Random, share: float) -> str:
    return f"{rng.choice(starts.INTROS)} " if rng.random() < share else ""


def _among_words(rng: random.Random) -> str:
    """Return a coin and a side, and any words around them: whatever else is said, the side is told."""

    def some() -> str:
        return " ".join(words.noun_phrase(rng) for _ in range(rng.randint(1, 4)))

    tail = f" {some()}" if rng.random() < 0.5 else ""
    return f"{_intro(rng, 0.3)}{some()} {{c}} {some()} {rng.choice(('{s}', 'the {s} side', '{s} up'))}{tail}"


def _side(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return f"{rng.choice((', ', ' with ', ', with ', ' '))}{rng.choice(starts.SHOWN)}"
    if kind < 0.6:
        link = rng.choice((", and ", " and ", ", so ", "; ", " - "))
        return f"{link}{rng.choice(starts.LOOKS)}{rng.choice((' ', ', '))}{rng.choice(starts.SEEN)}"
    if kind < 0.75:
        return f"{rng.choice((', ', ' '))}{rng.choice(starts.CARE)} {rng.choice(starts.CLAUSES)}"
    return f"{rng.choice((', ', ' '))}{rng.choice(starts.BESIDE)}"


def draw_side_question(rng: random.Random, down: bool) -> str:
    kind = rng.random()
    if down:
        return rng.choice(shapes.ASKS_DOWN) if kind < 0.4 else _ended(_which(rng, asks.DOWN, kind < 0.6), rng)
    if kind < 0.45:
        return rng.choice(shapes.ASKS)
    if kind < 0.65:
        return _ended(_timed(rng.choice(asks.DIRECT), rng), rng)
    if kind < 0.75:
        return _ended(_timed(f"{rng.choice(asks.FRAMES)} {rng.choice(asks.INDIRECT)}", rng), rng)
    return _ended(_which(rng, asks.UP, kind < 0.83), rng)


def draw_yes_no(rng: random.Random, down: bool) -> str:
    kind = rng.random()
    if down:
        shape = rng.choice(
            ("is {{s}} {}", "is the {{s}} side {}", "do you agree that {{s}} is {}", "is {{s}} now {}")
        )
        return _ended(shape.format(rng.choice(asks.DOWN[:12])), rng)
    if kind < 0.45:
        return rng.choice(shapes.YES_NO)
    if kind < 0.7:
        return _ended(_timed(rng.choice(asks.INVERTED), rng), rng)
    statement = _timed(rng.choice(asks.STATEMENTS), rng)
    if kind < 0.85:
        return _ended(f"{rng.choice(asks.AGREED)} {statement}", rng)
    said = f"{rng.choice(asks.SAID)} " if rng.random() < 0.8 else ""
    return _ended(
        f"{said}{statement}{rng.choice((', ', ', ', '. ', ' - ', ' '))}{rng.choice(asks.TAGS)}", rng
    )


def _which(rng: random.Random, where: tuple[str, ...], framed: bool) -> str:
    kind = rng.random()
    if kind < 0.7:
        which = rng.choice(("which", "which", "what"))
        asked = f"{which} {rng.choice(asks.SIDE_NOUNS)} {rng.choice(asks.BE)} {rng.choice(where)}"
    else:
        asked = f"what {rng.choice(asks.BE)} {rng.choice(where)}"
    asked = _timed(asked, rng)
    return f"{rng.choice(asks.FRAMES)} {asked}" if framed else asked


def _timed(text: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return text
    when = rng.choice(asks.TAILS)
    return f"{text} {when}" if kind < 0.85 else f"{when}{rng.choice((',', ''))} {text}"


def _ended(text: str, rng: random.Random) -> str:
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:] if text[0] != "{" else text.replace("{s}", "{S}", 1)
    return text + rng.choice(asks.ENDS)


def vocabulary() -> list[str]:
    put = [each for forms in PUTS for each in forms[1:4]]
    first = [text[:1].upper() + text[1:] for text in (*starts.INTROS, *starts.TERSE, *asks.texts)]
    return [*put, *starts.texts, *asks.texts, *first]
