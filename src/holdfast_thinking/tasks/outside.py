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
            asked = _filled(_outside.draw("SHAPE", rng), rng)
        if rng.random() < 0.12:
            asked = asked.rstrip("?.! ") or asked
        if rng.random() < 0.08:
            asked = asked.replace("'", "")
        text = " ".join((*sentences, asked))
        if rng.random() < 0.2:
            text = text.lower()
        end = rng.choice((QUESTION_END,) * 8 + ("", " Answer:", "\nA:"))
        return TextExample(text + end, OUTSIDE, ())


def _filled(shape: str, rng: random.Random) -> str:
    kinds = (words.COMMON, words.RARE, words.INVENTED)
    return words.fill(shape, rng).format(
        w=rng.choice(rng.choice(kinds)),
        t=rng.choice(_idle.FLIPPED),
        i=rng.randint(0, 99),
        j=rng.randint(0, 99),
        s=rng.choice(_outside.SUBJECTS),
    )
