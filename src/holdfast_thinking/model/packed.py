"""A micro-batch for the device: texts packed without padding between them, with all indices.

    rows     | text 0 ... . | text 1 .. . | text 2 ........ | spare |      texts start at a chunk
    chunks   |____|____|____|____|____|...

Every selection on the device (rows of the answer, chunks with a thought, rows that get a state) is
a list of indices made on the host. Its length is rounded up, so that a step has few shapes and the
host never waits for a size from the device. Padding of a list has no effect: its targets are
IGNORED, its states go to spare rows that no token attends to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import lcm
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.model.batch import Batch, Bools, Ints

IGNORED = -100  # a target without a loss
NO_TEXT = -1  # the text index of a spare row
_LEAST = 16
_ALIGNED = 8  # the keys of an attention mask are a multiple of this

A = TypeVar("A", Ints, Tensor)
S = TypeVar("S", Ints, Tensor)


@dataclass(frozen=True)
class Targets(Generic[A]):
    """Rows [n] and the next token of each, or IGNORED."""

    rows: A
    ids: A


@dataclass(frozen=True)
class ThoughtList(Generic[A]):
    """Thoughts of similar length. rows: of T the first one that it reads [n]; of C the first that adds the state,
    and the one after the last [n, 2]."""

    rows: A
    tokens: A


@dataclass(frozen=True)
class WholeTexts(Generic[A]):
    """For layers without a window: the rows of each text [B, longest], where each row went, lengths."""

    rows: A
    back: A
    lens: A


@dataclass(frozen=True)
class Packed(Generic[A]):
    """R rows of texts, chunk-aligned, the last chunk spare."""

    token_ids: A  # [R]
    positions: A  # [R]
    texts: A  # [R], NO_TEXT for spare rows
    answer: Targets[A]
    state_thoughts: tuple[ThoughtList[A], ...]  # input of C
    target_thoughts: tuple[ThoughtList[A], ...]  # targets of T
    thought: Targets[A] | None  # their tokens and ends; rows: of [n, m + 1] of each list, flat
    whole: WholeTexts[A] | None
    longest: int  # number of tokens of the longest text

    def map(self, change: Callable[[A], S]) -> "Packed[S]":
        """Apply a function to every array, always in the same order."""
        return cast("Packed[S]", _map(self, change))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, np.ndarray | Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(each, change) for each in value)
    if is_dataclass(value):
        kind: Any = type(value)
        return kind(*(_map(getattr(value, one.name), change) for one in fields(value)))
    return value


@dataclass(frozen=True)
class PackSpec:
    windows: tuple[int | None, ...]  # of each layer
    thinking: ThinkingConfig | None
    max_len: int | None = None  # positions


def is_local(window: int | None, longest: int) -> bool:
    """Return whether a window hides anything in texts of this length."""
    return window is not None and window < longest


def block_of(window: int) -> int:
    """Return the number of rows of an attention block: they attend to their own block and the one before."""
    return round_up(window, _ALIGNED)


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def padded(count: int, unit: int = 1) -> int:
    """Return the count rounded up by at most a sixteenth, so that there are few sizes."""
    return round_up(max(count, 1), lcm(unit, max(_LEAST, 1 << max(0, count.bit_length() - 5))))


def pack(batch: Batch, spec: PackSpec) -> Packed[Ints]:
    chunk = batch.token_ids.shape[1] // batch.thoughts.shape[1]
    longest = int(batch.num_tokens.max())
    if spec.max_len is not None and longest > spec.max_len:
        raise ConfigError(
            f"a text has {longest} tokens, and the model is trained with {spec.max_len} positions; use shorter texts"
        )
    lens = -(-batch.num_tokens // chunk) * chunk
    ends = np.cumsum(lens)
    starts = ends - lens  # [B]
    windows = set(spec.windows)
    blocks = [block_of(each) for each in windows if each is not None and is_local(each, longest)]
    num_rows = padded(int(ends[-1]) + chunk, lcm(chunk, *blocks))
    text, position = np.nonzero(np.arange(batch.token_ids.shape[1]) < batch.num_tokens[:, None])
    rows = starts[text] + position
    token_ids, positions = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    texts = np.full(num_rows, NO_TEXT, np.int64)
    token_ids[rows], positions[rows], texts[rows] = batch.token_ids[text, position], position, text
    targets: list[ThoughtList[Ints]] = []
    states: list[ThoughtList[Ints]] = []
    said = None
    if spec.thinking is not None:
        is_due = batch.is_thought_about(spec.thinking)
        targets = _list_target_thoughts(batch, is_due, starts, num_rows, spec.thinking)
        states = _list_state_thoughts(batch, starts, spec.thinking)
        said = _list_thought_targets(batch, is_due, targets, spec.thinking.end_id) if targets else None
    return Packed(
        token_ids,
        positions,
        texts,
        _list_targets(batch, starts, num_rows),
        tuple(states),
        tuple(targets),
        said,
        list_whole(batch.num_tokens, starts, text, position, rows, num_rows)
        if len(blocks) < len(windows)
        else None,
        longest,
    )


def send(packed: Packed[Ints], device: torch.device) -> Packed[Tensor]:
    """Copy to the device in one transfer, without waiting for it."""
    arrays: list[Ints] = []

    def collect(array: Ints) -> Ints:
        arrays.append(array)
        return array

    packed.map(collect)
    flat = torch.from_numpy(np.concatenate([each.reshape(-1) for each in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    ends = iter(np.cumsum([each.size for each in arrays]).tolist())

    def take(array: Ints) -> Tensor:
        last = next(ends)
        return flat[last - array.size : last].view(array.shape)

    return packed.map(take)


def _list_targets(batch: Batch, starts: Ints, num_rows: int) -> Targets[Ints]:
    """List the tokens of the answers. A target is predicted by the row before it."""
    text, position = np.nonzero(batch.is_answer())
    return _pad_targets(starts[text] + position - 1, batch.token_ids[text, position], num_rows)


def _pad_targets(rows: Ints, ids: Ints, num_rows: int) -> Targets[Ints]:
    """Pad with different rows: zero gradients that all go to one row would be added one by one."""
    missing = padded(len(ids)) - len(ids)
    rows = np.append(rows, np.arange(missing) % num_rows)
    return Targets(rows, np.pad(ids, (0, missing), constant_values=IGNORED))


def _list_target_thoughts(
    batch: Batch, is_due: Bools, starts: Ints, num_rows: int, thinking: ThinkingConfig
) -> list[ThoughtList[Ints]]:
    c = thinking.chunk
    text, chunk = np.nonzero(is_due)
    return _list_thoughts(
        batch.thoughts[text, chunk],
        starts[text] + batch.ends(thinking)[text, chunk] - c,
        lambda rows, missing: np.append(rows, c * (np.arange(missing) % (num_rows // c))),
    )


def _list_thoughts(
    thoughts: Ints, rows: Ints, pad_rows: Callable[[Ints, int], Ints]
) -> list[ThoughtList[Ints]]:
    lists = []
    for among, width in _by_length((thoughts >= 0).sum(axis=1), thoughts.shape[1]):
        tokens = _set_width(thoughts[among], width)
        missing = padded(len(tokens)) - len(tokens)
        padded_tokens = np.pad(tokens, ((0, missing), (0, 0)), constant_values=-1)
        lists.append(ThoughtList(pad_rows(rows[among], missing), padded_tokens))
    return lists


def _list_thought_targets(
    batch: Batch, is_due: Bools, lists: Sequence[ThoughtList[Ints]], end_id: int
) -> Targets[Ints]:
    lens = (batch.thoughts >= 0).sum(axis=2)[is_due]
    parts = []
    for each, (among, _) in zip(lists, _by_length(lens, batch.thoughts.shape[2]), strict=True):
        ids = np.pad(each.tokens, ((0, 0), (0, 1)), constant_values=-1)
        own = lens[among]
        ids[np.arange(len(own)), own] = end_id
        parts.append(ids.reshape(-1))
    flat = np.concatenate(parts)
    rows = np.nonzero(flat >= 0)[0]
    return _pad_targets(rows, flat[rows], len(flat))


def _list_state_thoughts(batch: Batch, starts: Ints, thinking: ThinkingConfig) -> list[ThoughtList[Ints]]:
    """Return the thought of each chunk that has tokens after it, if it is not trivial; with `carry` the last such
    since a reset. Its state is added until the next chunk is closed."""
    numbers = np.arange(batch.thoughts.shape[1])
    said_in = np.where(batch.thoughts[:, :, 0] >= 0, numbers, -1)  # [B, K]
    if thinking.carry:
        said_in = np.maximum.accumulate(said_in, axis=1)
        reset_in = np.where(batch.is_reset(thinking), numbers, -1)
        said_in = np.where(said_in >= np.maximum.accumulate(reset_in, axis=1), said_in, -1)
    ends = batch.ends(thinking)
    text, chunk = np.nonzero((said_in >= 0) & (ends < batch.num_tokens[:, None]))
    until = np.append(ends[:, 1:], batch.num_tokens[:, None], axis=1)
    until = np.minimum(until, batch.num_tokens[:, None])
    rows = starts[text, None] + np.stack((ends[text, chunk], until[text, chunk]), axis=1)
    return _list_thoughts(
        batch.thoughts[text, said_in[text, chunk]],
        rows,
        lambda rows, missing: np.pad(rows, ((0, missing), (0, 0))),
    )


def list_whole(
    lens: Ints, starts: Ints, text: Ints, position: Ints, rows: Ints, num_rows: int
) -> WholeTexts[Ints]:
    width = padded(int(lens.max()))
    back = np.arange(num_rows) % (len(starts) * width)
    back[rows] = text * width + position
    return WholeTexts((starts[:, None] + np.arange(width)) % num_rows, back, lens)


def _by_length(lens: Ints, longest: int) -> list[tuple[Ints, int]]:
    """Indices grouped by length, with the maximum of each group: 0, 2, 6, 12, 24 .. tokens."""
    lists, least, most = [], -1, 0
    while least < int(lens.max(initial=-1)):
        among = np.nonzero((lens > least) & (lens <= most))[0]
        if len(among):
            lists.append((among, min(most, longest)))
        least, most = most, 2 if most == 0 else 6 if most == 2 else 2 * most
    return lists


def _set_width(tokens: Ints, width: int) -> Ints:
    tokens = tokens[:, :width]
    return np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=-1)
