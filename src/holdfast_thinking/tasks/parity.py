"""A coin, and people who flip it or do not: the thought after each event is the current state.

    A coin's state is heads. Alice flips, then Bob flips. What's the state? A: heads.
                                   tails            heads

An event is decided by its verb: a thought must not depend on words of a later chunk ("flips" may
end a chunk, with or without "the coin" after it). As a chain of thought: " Alice flips: tails. Bob
flips: heads. So heads."; with one word for each event: " tails heads. So heads."
"""

import numpy as np

from holdfast_thinking.model.batch import Bools, Ints
from holdfast_thinking.tasks.filler import NAMES, Filler, byte_names, filler_texts
from holdfast_thinking.tasks.phrases import DrawnTexts, PhraseTable
from holdfast_thinking.tasks.task import AnswerForm

STATES = ("heads", "tails")
_STARTS = (
    "A coin's state is {}.",
    "The coin's state is {}.",
    "A coin shows {}.",
    "There is a coin on the table. It shows {}.",
    "At first the coin is {}.",
    "The coin starts as {}.",
)
_FLIPS = (
    " flips| the coin.",
    " flips| it.",
    " flips|.",
    " turns the coin over|.",
    " flips| the coin over.",
)
_WAITS = (
    " doesn't flip| the coin.",
    " does not flip| the coin.",
    " doesn't flip| it.",
    " doesn't flip|.",
    " leaves the coin alone|.",
)
_CHAINED_FLIPS, _CHAINED_WAITS = (
    (" flips|", " flips| it", " flips| the coin"),
    (" doesn't flip|", " does not flip|"),
)
_JOINERS = (", then", ", and then", ",", ".")
_QUESTIONS = (
    " What's the state? A:",
    " What is the coin's state? A:",
    " What is the state of the coin? A:",
    " Does the coin show heads or tails? A:",
)


class Parity:
    name = "parity"

    def __init__(self, long_texts: bool = True) -> None:
        starts = [text.format(state) for state in STATES for text in _STARTS]
        said = [f" {state}{end}" for state in STATES for end in ("", ".")]
        verbs = [*_FLIPS, *_WAITS, *_CHAINED_FLIPS, *_CHAINED_WAITS]
        names = [f" {name}" for name in (*NAMES, *byte_names(64))]
        self.phrases = p = PhraseTable(
            [
                *filler_texts(),
                *starts,
                *(f" {each}" for each in starts),
                *(names + verbs + said),
                *(*_JOINERS, *_QUESTIONS, " flips:", " doesn't flip:", ".", " So"),
            ]
        )
        self._filler = Filler(p, long_texts)
        self._starts = (
            p.numbers(starts).reshape(2, -1),
            p.numbers([f" {each}" for each in starts]).reshape(2, -1),
        )
        self._known, self._byte_names = p.numbers(names[: len(NAMES)]), p.numbers(names[len(NAMES) :])
        self._verbs = (
            (p.numbers(_WAITS), p.numbers(_FLIPS)),
            (p.numbers(_CHAINED_WAITS), p.numbers(_CHAINED_FLIPS)),
        )
        self._joiners, self._questions = p.numbers(_JOINERS), p.numbers(_QUESTIONS)
        self._state = p.numbers([f" {state}" for state in STATES])
        self._answer = p.numbers([f" {state}." for state in STATES])
        self._restated = p.numbers([" doesn't flip:", " flips:"])

    def words(self) -> list[str]:
        unknown = set(self._byte_names.tolist())
        return [
            text.replace("|", "") for number, text in enumerate(self.phrases.texts) if number not in unknown
        ]

    def draw(
        self, rng: np.random.Generator, num_texts: int, fewest: int, most: int, form: AnswerForm
    ) -> DrawnTexts:
        count = rng.integers(fewest, most + 1, num_texts)[:, None]  # [B, 1]
        is_event = np.arange(most) < count  # [B, n]
        start = rng.integers(0, 2, num_texts)
        is_flip = (rng.random((num_texts, most)) < rng.choice([0.5, 0.7, 1.0], num_texts)[:, None]) & is_event
        state = (start[:, None] + np.cumsum(is_flip, axis=1)) % 2  # [B, n]
        names = rng.choice(self._known, (num_texts, most))
        names = np.where(rng.random(names.shape) < 0.05, rng.choice(self._byte_names, names.shape), names)
        opening = self._filler.openings(rng, num_texts)
        is_chained = rng.random(num_texts) < 0.5
        events = self._events(rng, is_chained[:, None], is_event, is_flip, names)  # [B, 4 n]
        end = np.where(is_chained, self.phrases.number("."), 0)
        asked = rng.choice(self._questions, num_texts)
        last = np.take_along_axis(state, count - 1, axis=1)[:, 0]
        answer = self._answers(form, is_event, is_flip, names, state, last)
        head = np.stack((opening, self._start(rng, start, opening > 0)), axis=1)
        phrases = np.concatenate((head, events, end[:, None], asked[:, None], answer), axis=1)
        thoughts = np.zeros((*phrases.shape, 1), dtype=np.int64)
        if form == "thinking":
            thoughts[:, 5 : 5 + 4 * most : 4, 0] = np.where(is_event, self._state[state], 0)
        is_answer = np.zeros(phrases.shape, dtype=np.bool_)
        is_answer[:, -answer.shape[1] :] = True
        return DrawnTexts(phrases, thoughts, is_answer)

    def _start(self, rng: np.random.Generator, start: Ints, is_inside: Bools) -> Ints:
        phrase = rng.integers(0, len(_STARTS), len(start))
        return np.where(is_inside, self._starts[1][start, phrase], self._starts[0][start, phrase])

    def _events(
        self, rng: np.random.Generator, chained: Bools, is_event: Bools, is_flip: Bools, names: Ints
    ) -> Ints:
        """Joiner, filler, name, verb: [B, 4 n].

        Sentences, or clauses with joiners; no filler between clauses.
        """
        shape = is_event.shape
        joiner = np.where(chained, rng.choice(self._joiners, shape), 0)
        joiner[:, 0] = 0
        ends = (joiner == self.phrases.number(".")) | ~chained
        ends[:, 0] = True
        filler = self._filler.between(rng, ends)
        verbs = [
            [rng.choice(choices, shape) for choices in ways] for ways in self._verbs
        ]  # [sentence, chained][wait, flip]
        verb = np.where(
            chained, np.where(is_flip, verbs[1][1], verbs[1][0]), np.where(is_flip, verbs[0][1], verbs[0][0])
        )
        events = np.stack((joiner, filler, names, verb), axis=2) * is_event[:, :, None]
        return events.reshape(len(is_event), -1)

    def _answers(
        self, form: AnswerForm, is_event: Bools, is_flip: Bools, names: Ints, state: Ints, last: Ints
    ) -> Ints:
        final = self._answer[last][:, None]
        if form in ("thinking", "none"):
            return final
        so = np.full_like(final, self.phrases.number(" So"))
        if form == "words":
            stop = np.full_like(final, self.phrases.number("."))
            return np.concatenate((np.where(is_event, self._state[state], 0), stop, so, final), axis=1)
        restated = np.stack((names, self._restated[is_flip.astype(np.int64)], self._answer[state]), axis=2)
        events = (restated * is_event[:, :, None]).reshape(len(names), -1)
        return np.concatenate((events, so, final), axis=1)
