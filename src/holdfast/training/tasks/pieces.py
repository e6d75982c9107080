"""Texts put together from pieces, thousands at a time: a task draws piece numbers, numpy makes tokens of them.

A piece is a bit of text, cut where words end. A bar in it marks where a step is settled: " flips| the coin." can be
thought about in the chunk of " flips". Without a bar it is the piece's last token. Piece 0 is empty.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.training.batch import Batch, Bools, Ints

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Drawn:
    """B texts of at most P pieces, empty ones anywhere.

    thoughts: what is thought when a piece is read, as up to Q pieces; all empty: nothing.
    replaces: of several steps in one chunk only the last is thought, not one behind the other.
    """

    pieces: Ints  # [B, P]
    thoughts: Ints  # [B, P, Q]
    is_answer: Bools  # [B, P]
    replaces: bool = False


class Pieces:
    """The pieces of a task, numbered, and their tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = ("", *dict.fromkeys(texts))
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def number(self, text: str) -> int:
        return self._numbers[text]

    def numbers(self, texts: Sequence[str]) -> Ints:
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def encoded(self, encode: Encode) -> "PieceTokens":
        ids = [encode(text.replace("|", "")) for text in self.texts]
        marks = [len(encode(text.partition("|")[0])) - 1 for text in self.texts]
        lens = np.array([len(each) for each in ids], dtype=np.int64)
        return PieceTokens(
            flat=np.array([token for each in ids for token in each], dtype=np.int64),
            first=np.cumsum(lens) - lens,
            lens=lens,
            marks=np.array(marks, dtype=np.int64),
        )


@dataclass(frozen=True)
class PieceTokens:
    flat: Ints
    first: Ints  # where a piece's tokens begin in `flat`
    lens: Ints
    marks: Ints  # the token, of the piece's own, that settles its step

    def gather(self, pieces: Ints) -> tuple[NDArray[np.intp], Ints, Ints]:
        """Of pieces [n]: for each token which piece it is of, its place in that piece, and itself."""
        lens = self.lens[pieces]
        of = np.repeat(np.arange(len(pieces)), lens)
        place = np.arange(len(of)) - np.repeat(np.cumsum(lens) - lens, lens)
        return of, place, self.flat[self.first[pieces[of]] + place]


def assemble(drawn: Drawn, tokens: PieceTokens, chunk: int, max_thought: int, eos_id: int) -> Batch:
    """The texts as tokens, an end behind each, and their thoughts in the chunks where they can be known."""
    num_texts, num_pieces = drawn.pieces.shape
    lens = tokens.lens[drawn.pieces]  # [B, P]
    starts = np.cumsum(lens, axis=1) - lens
    total = lens.sum(axis=1)  # [B]
    num_chunks = -(-(int(total.max()) + 1) // chunk)
    ids = np.zeros((num_texts, num_chunks * chunk), dtype=np.int64)
    of, place, token = tokens.gather(drawn.pieces.reshape(-1))
    ids[of // num_pieces, starts.reshape(-1)[of] + place] = token
    ids[np.arange(num_texts), total] = eos_id
    return Batch(
        token_ids=ids,
        num_prompt=np.where(drawn.is_answer, 0, lens).sum(axis=1),
        num_tokens=total + 1,
        thoughts=_place_thoughts(
            drawn, tokens, (starts + tokens.marks[drawn.pieces]) // chunk, num_chunks, max_thought
        ),
    )


def _place_thoughts(
    drawn: Drawn, tokens: PieceTokens, chunk_of: Ints, num_chunks: int, max_thought: int
) -> Ints:
    """[B, K, M]. chunk_of [B, P]: the chunk in which a piece is settled."""
    lens = tokens.lens[drawn.thoughts].sum(axis=2)  # [B, P]
    text, piece = np.nonzero(lens)  # of each step, in reading order
    slot = text * num_chunks + chunk_of[text, piece]
    if drawn.replaces and len(slot):
        is_last = np.append(slot[1:] != slot[:-1], True)
        text, piece, slot = text[is_last], piece[is_last], slot[is_last]
    length = lens[text, piece]
    before = np.cumsum(length) - length
    is_first = np.append(True, slot[1:] != slot[:-1])[: len(slot)]
    offset = before - before[np.maximum.accumulate(np.where(is_first, np.arange(len(slot)), 0))]
    longest = int((offset + length).max(initial=1))
    if longest > max_thought:
        raise ConfigError(
            f"a chunk's thought has {longest} tokens and max_thought is {max_thought}; allow longer thoughts, "
            "or take smaller chunks"
        )
    thoughts = np.full((len(drawn.pieces) * num_chunks, longest), -1, dtype=np.int64)
    told = drawn.thoughts[text, piece]  # [steps, Q]
    part_lens = tokens.lens[told]
    part_at = offset[:, None] + np.cumsum(part_lens, axis=1) - part_lens
    of, place, token = tokens.gather(told.reshape(-1))
    thoughts[slot[of // told.shape[1]], part_at.reshape(-1)[of] + place] = token
    return thoughts.reshape(len(drawn.pieces), num_chunks, longest)
