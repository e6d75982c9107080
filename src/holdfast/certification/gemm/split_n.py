"""Split-N tuning: compute the output columns of a GEMM in two calls where profiling shows a gain.

The result is bitwise identical: an output does not depend on its column's place. The split-K search
checks that for every split, and the certificate checks what runs. A library chooses its tiles by
the shape, and at some shapes badly: 28672 columns with M = 448 took 286 us at once on an H200, and
166 us as 16128 columns and then 12544.
"""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.certification.gemm.multiply import Multiply
from holdfast.certification.gemm.timing import TimedGemm, copies_of

_MIN_COLUMNS = 16384  # narrower GEMMs did not gain
# Smaller batches are bound by loading weights; in larger ones a few tiles count for little.
_SIZES = range(144, 513, 16)
_SIXTEENTHS = (9, 12, 14, 8)  # of the columns, computed first
_ALIGNMENT = 256
_MIN_GAIN = 0.98  # of the time of one call, at most
_TIE = 1.03  # of the best time: the first within it wins; halves have small tiles, which draw more power
_ROUNDS = 3
_ROUND_SECONDS = 5e-4
_WARM_SECONDS = 0.3  # an idle device runs faster for a moment, and ranks the forms differently


def find_split_n(multiply: Multiply, weight: Tensor, sizes: Sequence[int]) -> dict[int, int]:
    """Batch size -> columns to compute first, where that is faster than one call. Empty on a
    CPU."""
    outputs, width = weight.shape
    if weight.device.type != "cuda" or outputs < _MIN_COLUMNS:
        return {}
    weights = copies_of(weight)
    tried = (0, *(outputs * part // 16 // _ALIGNMENT * _ALIGNMENT for part in _SIXTEENTHS))
    found: dict[int, int] = {}
    is_warm = False
    for size in sorted(set(sizes) & set(_SIZES)):
        x = torch.randn(size, width, dtype=weight.dtype, device=weight.device)
        forms = {split_n: TimedGemm(multiply, x, weights, 0, split_n) for split_n in tried}
        if not is_warm:
            _warm_up(forms[0])
            is_warm = True
        best = _fastest(forms)
        if best:
            found[size] = best
    return found


def _warm_up(form: TimedGemm) -> None:
    until = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < until:
        form.microseconds(32)


def _fastest(forms: dict[int, TimedGemm]) -> int:
    """The fastest split-N, measured in turns; 0, one call, unless a split is fast enough."""
    times: dict[int, list[float]] = {split_n: [] for split_n in forms}
    replays = max(1, round(1e6 * _ROUND_SECONDS / forms[0].microseconds() / forms[0].num_gemms))
    for _ in range(_ROUNDS):
        for split_n, form in forms.items():
            times[split_n].append(form.microseconds(replays))
    medians = {split_n: statistics.median(each) for split_n, each in times.items()}
    whole = medians.pop(0)
    best = min(medians.values())
    if best > _MIN_GAIN * whole:
        return 0
    return next(split_n for split_n, time_taken in medians.items() if time_taken <= _TIE * best)
