"""Texts made of phrases, thousands at a time: a task draws phrase numbers, numpy turns them into
tokens.

A phrase is a text that ends at a word boundary. A bar in it marks the end of the words that decide
a step: " flips| the coin." can be thought about in the chunk of " flips". Without a bar that is the
last token of the phrase. Phrase 0 is empty.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast_thinking.model.batch import Batch, Bools, Ints

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class DrawnTexts:
    """B texts of at most P phrases, some of them empty.

    thoughts: the thought after each phrase, as up to Q phrases; all empty: no thought.
    replaces: if several steps are in one chunk, the thought has only the last, not all of them.
    """

    phrases: Ints  # [B, P]
    thoughts: Ints  # [B, P, Q]
    is_answer: Bools  # [B, P]
    replaces: bool = False


class PhraseTable:
    """The phrases of a task and their numbers."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = ("", *dict.fromkeys(texts))
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def number(self, text: str) -> int:
        return self._numbers[text]

    def numbers(self, texts: Sequence[str]) -> Ints:
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def encoded(self, encode: Encode) -> "PhraseTokens":
        ids = [encode(text.replace("|", "")) for text in self.texts]
        marks = [len(encode(text.partition("|")[0])) - 1 for text in self.texts]
        lens = np.array([len(each) for each in ids], dtype=np.int64)
        return PhraseTokens(
            flat=np.array([token for each in ids for token in each], dtype=np.int64),
            first=np.cumsum(lens) - lens,
            lens=lens,
            marks=np.array(marks, dtype=np.int64),
        )


@dataclass(frozen=True)
class PhraseTokens:
    flat: Ints
    first: Ints  # start of a phrase's tokens in `flat`
    lens: Ints
    marks: Ints  # index of the token in the phrase that decides its step

    def gather(self, phrases: Ints) -> tuple[NDArray[np.intp], Ints, Ints]:
        """Phrases [n] -> for each token: its phrase, its index in that phrase, its id."""
        lens = self.lens[phrases]
        of = np.repeat(np.arange(len(phrases)), lens)
        index = np.arange(len(of)) - np.repeat(np.cumsum(lens) - lens, lens)
        return of, index, self.flat[self.first[phrases[of]] + index]


def assemble(drawn: DrawnTexts, tokens: PhraseTokens, chunk: int, max_thought: int, eos_id: int) -> Batch:
    """The texts as tokens, each with an end, and their thoughts in the chunks where they can be
    inferred.
    """
    num_texts, num_phrases = drawn.phrases.shape
    lens = tokens.lens[drawn.phrases]  # [B, P]
    starts = np.cumsum(lens, axis=1) - lens
    text_lens = lens.sum(axis=1)  # [B]
    num_chunks = -(-(int(text_lens.max()) + 1) // chunk)
    ids = np.zeros((num_texts, num_chunks * chunk), dtype=np.int64)
    of, index, token = tokens.gather(drawn.phrases.reshape(-1))
    ids[of // num_phrases, starts.reshape(-1)[of] + index] = token
    ids[np.arange(num_texts), text_lens] = eos_id
    return Batch(
        token_ids=ids,
        num_prompt=np.where(drawn.is_answer, 0, lens).sum(axis=1),
        num_tokens=text_lens + 1,
        thoughts=_place_thoughts(
            drawn, tokens, (starts + tokens.marks[drawn.phrases]) // chunk, num_chunks, max_thought
        ),
    )


def _place_thoughts(
    drawn: DrawnTexts, tokens: PhraseTokens, chunk_of: Ints, num_chunks: int, max_thought: int
) -> Ints:
    """[B, K, M]. chunk_of [B, P]: the chunk in which a phrase is decided."""
    lens = tokens.lens[drawn.thoughts].sum(axis=2)  # [B, P]
    text, phrase = np.nonzero(lens)  # of each step, in text order
    slot = text * num_chunks + chunk_of[text, phrase]
    if drawn.replaces and len(slot):
        is_last = np.append(slot[1:] != slot[:-1], True)
        text, phrase, slot = text[is_last], phrase[is_last], slot[is_last]
    length = lens[text, phrase]
    before = np.cumsum(length) - length
    is_first = np.append(True, slot[1:] != slot[:-1])[: len(slot)]
    offset = before - before[np.maximum.accumulate(np.where(is_first, np.arange(len(slot)), 0))]
    longest = int((offset + length).max(initial=1))
    if longest > max_thought:
        raise ConfigError(
            f"the thought of a chunk has {longest} tokens and max_thought is {max_thought}; raise max_thought "
            "or use smaller chunks"
        )
    thoughts = np.full((len(drawn.phrases) * num_chunks, longest), -1, dtype=np.int64)
    chosen = drawn.thoughts[text, phrase]  # [steps, Q]
    phrase_lens = tokens.lens[chosen]
    phrase_starts = offset[:, None] + np.cumsum(phrase_lens, axis=1) - phrase_lens
    of, index, token = tokens.gather(chosen.reshape(-1))
    thoughts[slot[of // chosen.shape[1]], phrase_starts.reshape(-1)[of] + index] = token
    return thoughts.reshape(len(drawn.phrases), num_chunks, longest)
