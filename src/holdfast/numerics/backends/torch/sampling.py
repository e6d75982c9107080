"""Choosing tokens without compiled kernels: numpy, one row at a time, by the rule of `choice.py`.

A row is always handled alone, because a library's reduction over [1, V] and over [2, V] may differ in bits.
The noise is the same function of (seed, position, token id) as in the kernels (`compiled/choice.c` writes
it down); its logarithms are numpy's, so the last bit may differ between the two paths, which are different
recipes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.numerics.sampling import SamplingBatch

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_STREAM = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def noise(seed: int, position: int, ids: Ids) -> Floats:
    """Gumbel noise for token ids: a function of the three numbers and of nothing else."""
    parts = np.array([(seed + _GOLDEN) & _MASK, (position * _GOLDEN + _STREAM) & _MASK], dtype=np.uint64)
    mixed = _mix(parts)
    key = _mix(mixed[:1] ^ mixed[1:])
    h = _mix(key + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    w = ((h >> np.uint64(32)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.minimum(w, np.float32(1.0 - 2.0**-24))
    gumbel: Floats = -np.log(-np.log1p(-w))
    return gumbel


def _best_first(z: Floats, ids: Ids) -> Ids:
    """`ids` by descending z, ties to the lowest id."""
    best: Ids = ids[np.lexsort((ids, -z[ids]))]
    return best


def _best_k(z: Floats, k: int) -> Ids:
    """Ids of the k best of a row, in order; only what can be among them is sorted."""
    if k >= len(z):
        return _best_first(z, np.arange(len(z)))
    edge = np.partition(z, len(z) - k)[len(z) - k]
    above = np.flatnonzero(z > edge)
    return np.concatenate((_best_first(z, above), np.flatnonzero(z == edge)[: k - len(above)]))


def _reach_mass(z: Floats, p: NDArray[np.float64], kept: Ids, top_p: float) -> Ids:
    """The smallest set of the best in `kept` whose mass reaches top_p, found among few before many."""
    need = top_p * p[kept].sum()
    count = 256
    while True:
        if count < len(kept):
            edge = np.partition(z[kept], len(kept) - count)[len(kept) - count]
            best = _best_first(z, kept[z[kept] >= edge])
        else:
            best = _best_first(z, kept)
        mass = np.cumsum(p[best])
        if mass[-1] >= need or len(best) == len(kept):
            return best[: int(np.searchsorted(mass, need)) + 1]
        count *= 8


def _choose_row(
    logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float, key: tuple[int, int]
) -> int:
    row = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    first = int(np.argmax(row))
    if not temperature > 0.0:
        return first
    with np.errstate(over="ignore"):
        z: Floats = (row / np.float32(temperature) + np.float32(0.0)).astype(np.float32)  # -0 counts as 0
    if not np.isfinite(z[first]):
        return first
    kept = np.sort(_best_k(z, top_k)) if 0 < top_k < len(z) else np.arange(len(z))
    kept = kept[z[kept] > -np.inf]
    if top_p < 1.0 or min_p > 0.0:
        with np.errstate(under="ignore"):
            p = np.exp((z - z[first]).astype(np.float64))
        if top_p < 1.0:
            kept = np.sort(_reach_mass(z, p, kept, top_p))
        kept = kept[p[kept] >= min_p]
    return int(kept[np.argmax(z[kept] + noise(*key, kept))])


def best(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> int64 [n]: the argmax, ties to the lowest id."""
    rows = np.where(np.isnan(logits.numpy()), np.float32(-np.inf), logits.numpy())
    return torch.from_numpy(np.argmax(rows, axis=1))


def choose(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits fp32 [n, V] -> int64 [n]."""
    rows = logits.numpy()
    settings = zip(
        *(batch.temperature.tolist(), batch.top_k.tolist(), batch.top_p.tolist(), batch.min_p.tolist()),
        *(batch.seeds.tolist(), batch.positions.tolist()),
        strict=True,
    )
    chosen = [
        _choose_row(rows[i], t, k, p, m, (seed, at)) for i, (t, k, p, m, seed, at) in enumerate(settings)
    ]
    return torch.tensor(chosen, dtype=torch.int64)


def logsumexp(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> fp32 [n]; NaN counts as -inf."""
    return torch.tensor([_logsumexp_row(row) for row in logits.numpy()], dtype=torch.float32)


def _logsumexp_row(logits: Floats) -> float:
    row = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    best = row.max()
    if not np.isfinite(best):
        return float(best)
    return float(best + np.log(np.exp((row - best).astype(np.float64)).sum()))


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, ties to the lowest id."""
    rows = np.where(np.isnan(logits.numpy()), np.float32(-np.inf), logits.numpy())
    k = min(k, rows.shape[1])
    ids = (
        np.stack([_best_k(row, k) for row in rows])
        if k and len(rows)
        else np.empty((len(rows), k), dtype=np.int64)
    )
    return torch.from_numpy(np.take_along_axis(rows, ids, axis=1)), torch.from_numpy(ids)
