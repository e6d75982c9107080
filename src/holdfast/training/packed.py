"""A micro-batch as the device reads it: texts one behind the other, no padding between them, all indices made here.

    rows     | text 0 ... . | text 1 .. . | text 2 ........ | spare |      a text begins where a chunk begins
    chunks   |____|____|____|____|____|...

Everything the device has to choose (rows that answer, chunks that are thought about, where a state goes) is a list of
indices made on the host, its length rounded up, so that a step has few shapes and the device never has to say how many.
What a list is padded with changes nothing: its targets are IGNORED, its states go to spare rows that nobody sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from holdfast.training.batch import Batch, Bools, Ints

IGNORED = -100  # a target that counts nothing
NOBODY = -1  # the text of a spare row
_LEAST = 16
_ALIGNED = 8  # keys of an attention mask come in eights

A = TypeVar("A", Ints, Tensor)
S = TypeVar("S", Ints, Tensor)


@dataclass(frozen=True)
class Targets(Generic[A]):
    """Rows [n] and the token each is to say, or IGNORED."""

    rows: A
    ids: A


@dataclass(frozen=True)
class Thoughts(Generic[A]):
    """Thoughts of about one length: their chunks [n], their tokens [n, m] with -1 behind each.

    Of T's lists the chunks are those that are read, of C's those that get the state."""

    chunks: A
    tokens: A


@dataclass(frozen=True)
class Whole(Generic[A]):
    """For layers that see all of a text: its rows as [B, longest], and where each row of the pack is among these."""

    rows: A
    back: A


@dataclass(frozen=True)
class Packed(Generic[A]):
    """R rows of texts, chunk-aligned, the last chunk spare."""

    token_ids: A  # [R]
    places: A  # [R], positions
    texts: A  # [R], NOBODY where there is none
    answer: Targets[A]
    text: Targets[A] | None
    told: tuple[Thoughts[A], ...]  # C's
    due: tuple[Thoughts[A], ...]  # T's
    due_ids: A | None  # what T is to say: of every list of `due`, [n, m + 1], one behind the other, flat
    whole: Whole[A] | None
    longest: int  # tokens of a text

    def map(self, change: Callable[[A], S]) -> "Packed[S]":
        """Every array changed, always in the same order."""

        def thoughts(each: Thoughts[A]) -> Thoughts[S]:
            return Thoughts(change(each.chunks), change(each.tokens))

        return Packed(
            change(self.token_ids),
            change(self.places),
            change(self.texts),
            Targets(change(self.answer.rows), change(self.answer.ids)),
            None if self.text is None else Targets(change(self.text.rows), change(self.text.ids)),
            tuple(thoughts(each) for each in self.told),
            tuple(thoughts(each) for each in self.due),
            None if self.due_ids is None else change(self.due_ids),
            None if self.whole is None else Whole(change(self.whole.rows), change(self.whole.back)),
            self.longest,
        )


@dataclass(frozen=True)
class Reader:
    """What of a model decides how texts are packed for it."""

    windows: tuple[int | None, ...]  # a layer
    end_id: int | None  # of a thought; None: it does not think
    while_answering: bool = False


def is_local(window: int | None, longest: int) -> bool:
    """Whether a window hides anything of texts so long."""
    return window is not None and window < longest


def block_of(window: int) -> int:
    """Rows that are attended from together, to themselves and as many before."""
    return round_up(window, _ALIGNED)


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def padded(count: int, unit: int = 1) -> int:
    """At most a sixteenth more, so that there are few sizes."""
    return round_up(max(count, 1), lcm(unit, max(_LEAST, 1 << max(0, count.bit_length() - 5))))


def pack(batch: Batch, reader: Reader, with_text: bool = False) -> Packed[Ints]:
    chunk = batch.token_ids.shape[1] // batch.thoughts.shape[1]
    longest = int(batch.num_tokens.max())
    ends = np.cumsum(round_up_all(batch.num_tokens, chunk))
    starts = ends - round_up_all(batch.num_tokens, chunk)  # [B]
    windows = set(reader.windows)
    blocks = [block_of(each) for each in windows if each is not None and is_local(each, longest)]
    num_rows = padded(int(ends[-1]) + chunk, lcm(chunk, *blocks))
    text, place = np.nonzero(np.arange(batch.token_ids.shape[1]) < batch.num_tokens[:, None])
    rows = starts[text] + place
    token_ids, places = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    texts = np.full(num_rows, NOBODY, np.int64)
    token_ids[rows], places[rows], texts[rows] = batch.token_ids[text, place], place, text
    due: list[Thoughts[Ints]] = []
    told: list[Thoughts[Ints]] = []
    if reader.end_id is not None:
        due = _list_due(batch, starts // chunk, num_rows // chunk, reader.while_answering)
        told = _list_told(batch, starts // chunk, num_rows // chunk, chunk)
    return Packed(
        token_ids,
        places,
        texts,
        _list_targets(batch, batch.is_answer(), starts, num_rows),
        _list_targets(batch, ~batch.is_answer(), starts, num_rows) if with_text else None,
        tuple(told),
        tuple(due),
        _list_due_ids(batch, due, reader.end_id, reader.while_answering)
        if reader.end_id is not None and due
        else None,
        _list_whole(starts, text, place, rows, longest, num_rows) if len(blocks) < len(windows) else None,
        longest,
    )


def send(packed: Packed[Ints], device: torch.device) -> Packed[Tensor]:
    """In one transfer that nobody waits for."""
    arrays: list[Ints] = []

    def note(array: Ints) -> Ints:
        arrays.append(array)
        return array

    packed.map(note)
    flat = torch.from_numpy(np.concatenate([each.reshape(-1) for each in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    ends = iter(np.cumsum([each.size for each in arrays]).tolist())

    def take(array: Ints) -> Tensor:
        last = next(ends)
        return flat[last - array.size : last].view(array.shape)

    return packed.map(take)


def round_up_all(counts: Ints, unit: int) -> Ints:
    return -(-counts // unit) * unit


def _list_targets(batch: Batch, is_wanted: Bools, starts: Ints, num_rows: int) -> Targets[Ints]:
    """Each wanted token but a text's first is said by the row before it."""
    places = np.arange(batch.token_ids.shape[1])
    text, place = np.nonzero(is_wanted & (places > 0) & (places < batch.num_tokens[:, None]))
    ids = batch.token_ids[text, place]
    missing = padded(len(ids)) - len(ids)
    return Targets(
        _spread(starts[text] + place - 1, missing, num_rows),
        np.pad(ids, (0, missing), constant_values=IGNORED),
    )


def _list_due(batch: Batch, first: Ints, num_chunks: int, while_answering: bool) -> list[Thoughts[Ints]]:
    text, chunk = np.nonzero(batch.is_thought_about(while_answering))
    lists = []
    for among, width in _by_length((batch.thoughts[text, chunk] >= 0).sum(axis=1), batch.thoughts.shape[2]):
        tokens = _cut(batch.thoughts[text[among], chunk[among]], width)
        missing = padded(len(tokens)) - len(tokens)
        chunks = _spread(first[text[among]] + chunk[among], missing, num_chunks)
        lists.append(Thoughts(chunks, np.pad(tokens, ((0, missing), (0, 0)), constant_values=-1)))
    return lists


def _list_due_ids(batch: Batch, due: Sequence[Thoughts[Ints]], end_id: int, while_answering: bool) -> Ints:
    """A thought's tokens and its end; nothing of what the lists were padded with."""
    lens = (batch.thoughts >= 0).sum(axis=2)[batch.is_thought_about(while_answering)]
    parts = []
    for each, (among, _) in zip(due, _by_length(lens, batch.thoughts.shape[2]), strict=True):
        ids = np.pad(each.tokens, ((0, 0), (0, 1)), constant_values=-1)
        ids[ids < 0] = IGNORED
        own = lens[among]
        ids[np.arange(len(own)), own] = end_id
        parts.append(ids.reshape(-1))
    return np.concatenate(parts)


def _list_told(batch: Batch, first: Ints, num_chunks: int, size: int) -> list[Thoughts[Ints]]:
    """Thoughts that are not trivial and have a chunk behind theirs."""
    has_next = (np.arange(batch.thoughts.shape[1]) + 1) * size < batch.num_tokens[:, None]
    text, chunk = np.nonzero((batch.thoughts[:, :, 0] >= 0) & has_next)
    lists = []
    for among, width in _by_length((batch.thoughts[text, chunk] >= 0).sum(axis=1), batch.thoughts.shape[2]):
        tokens = _cut(batch.thoughts[text[among], chunk[among]], width)
        missing = padded(len(tokens)) - len(tokens)
        chunks = np.pad(first[text[among]] + chunk[among] + 1, (0, missing), constant_values=num_chunks - 1)
        lists.append(Thoughts(chunks, np.pad(tokens, ((0, missing), (0, 0)), constant_values=-1)))
    return lists


def _list_whole(
    starts: Ints, text: Ints, place: Ints, rows: Ints, longest: int, num_rows: int
) -> Whole[Ints]:
    width = padded(longest)
    back = np.arange(num_rows) % (len(starts) * width)
    back[rows] = text * width + place
    return Whole((starts[:, None] + np.arange(width)) % num_rows, back)


def _by_length(lens: Ints, longest: int) -> list[tuple[Ints, int]]:
    """Which are about equally long, and the longest that may be: 0, 2, 6, 12, 24 .. tokens."""
    lists, least, most = [], -1, 0
    while least < int(lens.max(initial=-1)):
        among = np.nonzero((lens > least) & (lens <= most))[0]
        if len(among):
            lists.append((among, min(most, longest)))
        least, most = most, 2 if most == 0 else 6 if most == 2 else 2 * most
    return lists


def _cut(tokens: Ints, width: int) -> Ints:
    tokens = tokens[:, :width]
    return np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=-1)


def _spread(indices: Ints, missing: int, size: int) -> Ints:
    """Padded with indices of anything, each another: gradients of nothing that all go to one row would queue there."""
    return np.concatenate((indices, np.arange(missing) % size))
