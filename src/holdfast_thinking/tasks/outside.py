"""Sentences about anything: idle stretches of a text, first sentences, and prompts that are outside a
small model's world.

Most follow a pattern of parts of speech. Some are words in any order, and some have rare or invented
words, so that a model learns to pass over whatever it does not know.
"""

import random

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample
from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.coin import idle_clause
from holdfast_thinking.grammar.words import SENTENCES

_idle, _outside = read_words("idle"), read_words("outside")
OUTSIDE = " I only know coins and variables."


def idle_sentence(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.06:
        return rng.choice(SENTENCES)
    if kind < 0.36:
        told = _filled(rng.choice(_idle.LOOSE), rng)
    elif kind < 0.44:
        told = _filled(rng.choice(_idle.FLIPPED_SHAPES), rng)
    elif kind < 0.90:
        told = idle_clause(rng)
    else:
        lists = (words.NOUNS, words.ADJECTIVES, words.COMMON, words.RARE, words.INVENTED)
        told = " ".join(rng.choice(rng.choice(lists)) for _ in range(rng.randint(2, 9)))
    return f"{told[0].upper()}{told[1:]}."


def opening(rng: random.Random) -> str:
    if rng.random() < 0.35:
        return rng.choice(_idle.OPENINGS)
    return " ".join(idle_sentence(rng) for _ in range(rng.randint(1, 2)))


_FIRST_WORDS = "The A My Her His She He It They There What Nobody Everybody Someone I We You In On At If"


class Outside:
    """Prompts about anything else: the answer says what the model knows."""

    has_events = False

    def words(self) -> list[str]:
        kinds = (words.NOUNS, words.ADJECTIVES, words.COMMON, words.PREPOSITIONS, words.PLACES, words.TIMES)
        listed = (text for kind in kinds for text in kind)
        return [*_idle.texts, *_outside.texts, *listed, *SENTENCES, OUTSIDE, _FIRST_WORDS]

    def example(self, rng: random.Random, events: int) -> TextExample:
        sentences = [idle_sentence(rng) for _ in range(rng.choice((0, 0, 0, 0, 1, 2, min(events, 12))))]
        kind = rng.random()
        if kind < 0.08:
            asked = idle_sentence(rng)
        else:
            asked = _filled(_outside_shape(rng), rng)
        if rng.random() < 0.12:
            asked = asked.rstrip("?.! ") or asked
        if rng.random() < 0.08:
            asked = asked.replace("'", "")
        text = " ".join((*sentences, asked))
        if rng.random() < 0.2:
            text = text.lower()
        end = rng.choice((QUESTION_END,) * 8 + ("", " Answer:", "\nA:"))
        return TextExample(text + end, OUTSIDE, ())


def _outside_shape(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(_outside.COINS if kind < 0.12 else _outside.ASKS)
    if kind < 0.7:
        before = f"{rng.choice(_outside.BEFORE)} " if rng.random() < 0.5 else ""
        shape, end = before + rng.choice(_outside.REQUESTS), rng.choice((".", ".", "", "!", "?"))
    elif kind < 0.8:
        shape, end = rng.choice(_outside.CHATS), rng.choice(("", "", ".", "!", "?"))
    else:
        before = f"{rng.choice(_outside.BEFORE[:12])} " if rng.random() < 0.15 else ""
        shape, end = before + rng.choice(_outside.FACTS), rng.choice(("?", "?", "?", "", "??"))
    if rng.random() < 0.6 and shape[0] != "{":
        shape = shape[0].upper() + shape[1:]
    return shape + end


def _filled(shape: str, rng: random.Random) -> str:
    if "{" not in shape:
        return shape
    kinds = (words.COMMON, words.RARE, words.INVENTED)
    return shape.format(
        n=words.noun_phrase(rng) if rng.random() < 0.3 else rng.choice(words.NOUNS),
        m=rng.choice(words.NOUNS if rng.random() < 0.8 else words.RARE),
        a=rng.choice(words.ADJECTIVES),
        b=rng.choice(words.ADJECTIVES),
        w=rng.choice(rng.choice(kinds)),
        t=rng.choice(_idle.FLIPPED),
        N=words.draw_name(rng),
        M=words.draw_name(rng),
        i=rng.randint(0, 99),
        j=rng.randint(0, 99),
        s=rng.choice(_outside.SUBJECTS),
    )
