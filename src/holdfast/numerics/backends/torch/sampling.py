"""Sampling without C kernels: numpy, one row at a time, by the rule of `numerics/sampling.py`.

Of numpy only operations are used whose result IEEE 754 defines, and sums in the order of the ids
(`cumsum`). numpy's own logarithm, exponential and sum depend on the instructions of the CPU. The
Gumbel noise is the function of (seed, position, token id) that `backends/c/sampling.c` defines, bit
for bit. Probabilities are fp64 here and fp32 there, so the two backends are different recipes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN
from holdfast.numerics.backends.torch.noise import gumbel, noise_bits
from holdfast.numerics.elementary import Floats, exp_fp64, log_fp64
from holdfast.numerics.sampling import SamplingBatch

Ids = NDArray[np.int64]

_MIN_NOISE, _MAX_NOISE = np.float32(-2.9), np.float32(22.9)  # of the largest w and the smallest, 2^-33
_LN_2 = np.float32(0.6931472)


def _argmax_noisy(z: Floats, kept: Ids, best_id: int, key: tuple[int, int]) -> int:
    """Return the id of the largest z + noise, ties to the lowest; best_id has the largest z.

    Noise with n leading zeros in its 32 bits is less than (n + 1) ln 2 and, for n > 0, at least
    n ln 2 - 0.33. These bounds exclude most ids before a logarithm is computed.
    """
    ids = kept[z[kept] + _MAX_NOISE >= z[best_id] + _MIN_NOISE]
    hashes = noise_bits(*key, ids)
    num_zeros = (32 - np.frexp(hashes.astype(np.float64))[1]).astype(np.float32)
    least = z[ids] + np.where(num_zeros > 0, num_zeros * _LN_2 - np.float32(0.34), _MIN_NOISE)
    most = z[ids] + (num_zeros * _LN_2 + np.float32(0.695))
    close = most >= least.max()
    ids = ids[close]
    return int(ids[np.argmax(z[ids] + gumbel(hashes[close]))])


def _sort(z: Floats, ids: Ids) -> Ids:
    """`ids` by descending z, ties to the lowest id."""
    ordered: Ids = ids[np.lexsort((ids, -z[ids]))]
    return ordered


def _top_k(z: Floats, k: int) -> Ids:
    """Return ids of the k largest z, in order. Only the candidates are sorted."""
    if k >= len(z):
        return _sort(z, np.arange(len(z)))
    threshold = np.partition(z, len(z) - k)[len(z) - k]
    above = np.flatnonzero(z > threshold)
    return np.concatenate((_sort(z, above), np.flatnonzero(z == threshold)[: k - len(above)]))


def _top_p(z: Floats, p: NDArray[np.float64], kept: Ids, top_p: float) -> Ids:
    """Return the smallest set of the best ids in `kept` whose mass reaches top_p.

    Tries the 256 best, then 8 times as many.
    """
    needed = top_p * np.cumsum(p[kept])[-1]
    count = 256
    while True:
        if count < len(kept):
            threshold = np.partition(z[kept], len(kept) - count)[len(kept) - count]
            ordered = _sort(z, kept[z[kept] >= threshold])
        else:
            ordered = _sort(z, kept)
        cumulative = np.cumsum(p[ordered])
        if cumulative[-1] >= needed or len(ordered) == len(kept):
            return ordered[: int(np.searchsorted(cumulative, needed)) + 1]
        count *= 8


def _sample_row(
    logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float, key: tuple[int, int]
) -> int:
    row = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    best_id = _argmax(row)
    if best_id == NO_TOKEN or not temperature > 0.0:
        return best_id
    with np.errstate(over="ignore"):
        z: Floats = (row / np.float32(temperature) + np.float32(0.0)).astype(np.float32)  # -0 counts as 0
    if not np.isfinite(z[best_id]):
        return best_id
    if not min_p <= 1.0:
        return NO_TOKEN
    kept = np.sort(_top_k(z, top_k)) if 0 < top_k < len(z) else np.arange(len(z))
    kept = kept[z[kept] > -np.inf]
    if top_p < 1.0 or min_p > 0.0:
        p = exp_fp64((z - z[best_id]).astype(np.float64))
        if top_p < 1.0:
            kept = np.sort(_top_p(z, p, kept, top_p))
        kept = kept[p[kept] >= min_p]
    return _argmax_noisy(z, kept, best_id, key)


def _argmax(row: Floats) -> int:
    """Return the id of the largest logit, ties to the lowest; NO_TOKEN if all are -inf."""
    best_id = int(np.argmax(row))
    return best_id if row[best_id] > -np.inf else NO_TOKEN


def argmax(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> int64 [n]: the argmax, ties to the lowest id; NO_TOKEN if there is none."""
    rows = np.where(np.isnan(logits.numpy()), np.float32(-np.inf), logits.numpy())
    return torch.tensor([_argmax(row) for row in rows], dtype=torch.int64)


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits fp32 [n, V] -> int64 [n]."""
    rows = logits.numpy()
    settings = zip(
        *(batch.temperature.tolist(), batch.top_k.tolist(), batch.top_p.tolist(), batch.min_p.tolist()),
        *(batch.seeds.tolist(), batch.positions.tolist()),
        strict=True,
    )
    token_ids = [
        _sample_row(rows[i], t, k, p, m, (seed, position))
        for i, (t, k, p, m, seed, position) in enumerate(settings)
    ]
    return torch.tensor(token_ids, dtype=torch.int64)


def logsumexp(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> fp32 [n]; NaN counts as -inf."""
    return torch.tensor([_logsumexp_row(row) for row in logits.numpy()], dtype=torch.float32)


def _logsumexp_row(logits: Floats) -> float:
    row = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    largest = row.max()
    if not np.isfinite(largest):
        return float(largest)
    total = np.cumsum(exp_fp64((row - largest).astype(np.float64)))[-1]
    return float(largest) + log_fp64(float(total))


def topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits of each row, ties to the lowest id."""
    rows = np.where(np.isnan(logits.numpy()), np.float32(-np.inf), logits.numpy())
    k = min(k, rows.shape[1])
    ids = (
        np.stack([_top_k(row, k) for row in rows])
        if k and len(rows)
        else np.empty((len(rows), k), dtype=np.int64)
    )
    return torch.from_numpy(np.take_along_axis(rows, ids, axis=1)), torch.from_numpy(ids)
