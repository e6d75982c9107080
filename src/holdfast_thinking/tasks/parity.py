"""A coin, and people who flip it or do not: the thought after each event is the current state.

    A coin's state is heads. Alice flips, then Bob flips. What's the state? A: heads.
                                   tails            heads

An event is decided by its verb: a thought must not depend on words of a later chunk ("flips" may
end a chunk, with or without "the coin" after it). As a chain of thought: " Alice flips: tails. Bob
flips: heads. So heads."
"""

import random

from holdfast_thinking.data.text_examples import TextExample, ThoughtStep
from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar.words import (
    FEW_NAMES,
    OPENINGS,
    SENTENCES,
    draw_filler,
    draw_opening,
    draw_rate,
)

STATES = ("heads", "tails")
_words = read_words("parity")
_SENTENCES = (_words.WAITS, _words.FLIPS)
_CLAUSES = (_words.WAITS_IN_A_CHAIN, _words.FLIPS_IN_A_CHAIN)
_RESTATED = (" doesn't flip", " flips")


class Parity:
    def __init__(self, long_texts: bool = True) -> None:
        self._long_texts = long_texts

    def words(self) -> list[str]:
        starts = [text.format(state) for state in STATES for text in _words.STARTS]
        verbs = [text.replace("|", "") for ways in (*_SENTENCES, *_CLAUSES) for text in ways]
        said = [f" {each}" for each in (*starts, *FEW_NAMES, *STATES)]
        return [*OPENINGS, *SENTENCES, *starts, *said, *verbs, *_words.JOINERS, *_words.QUESTIONS, " So", ":"]

    def example(self, rng: random.Random, events: int) -> TextExample:
        state, steps = rng.randrange(2), list[ThoughtStep]()
        text = draw_opening(rng) + rng.choice(_words.STARTS).format(STATES[state])
        share, rate = rng.choice((0.5, 0.7, 1.0)), draw_rate(rng, self._long_texts)
        is_chained = rng.random() < 0.5
        ways = _CLAUSES if is_chained else _SENTENCES
        for number in range(events):
            joiner = rng.choice(_words.JOINERS) if is_chained and number else ""
            text += joiner
            if not is_chained or not number or joiner == ".":  # between clauses there is no filler
                text += draw_filler(rng, rate)
            name = rng.choice(_words.UNKNOWN_NAMES if rng.random() < 0.05 else FEW_NAMES)
            is_flip = rng.random() < share
            state ^= is_flip
            verb, rest = rng.choice(ways[is_flip]).split("|")
            text += f" {name}{verb}"
            told = f" {name}{_RESTATED[is_flip]}: {STATES[state]}"
            steps.append(ThoughtStep(len(text) - 1, f" {STATES[state]}", said=told))
            text += rest
        text += "." if is_chained else ""
        return TextExample(text + rng.choice(_words.QUESTIONS), f" {STATES[state]}.", tuple(steps))
