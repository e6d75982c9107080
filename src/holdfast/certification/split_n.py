"""Where a library's own product is better made of two, side by side. The clock is asked, for no bit depends on it.

A library chooses its tiles by the shape, and at some shapes its guess is far off: 28672 columns of 448 rows took 286 us at
once on an H200, 166 us as 16128 columns and then 12544. An output is the same wherever its column stands, which
`slices` checks of every cut and the certificate of what runs.
"""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.certification.gemm_timing import Multiply, TimedProduct, copies_of

_FEWEST_COLUMNS = 16384  # narrower products had nothing to gain
_ROWS = range(129, 513)  # fewer wait for the weights in any form; with more, a few tiles count for little
_SIXTEENTHS = (9, 12, 14, 8)  # of the columns, the first piece
_ALIGNMENT = 256
_WORTH = 0.98  # of the time at once, at most
_ALIKE = 1.03  # of the best time: the first of them is taken; halves have small tiles, which draw more power
_ROUNDS = 3
_ROUND_SECONDS = 1e-3
_WARM_SECONDS = 0.3  # a device that was idle runs faster for a moment, and ranks differently


def find_cuts(multiply: Multiply, weight: Tensor, totals: Sequence[int]) -> dict[int, int]:
    """Rows -> columns to multiply first, where that is faster than all at once. Nothing on a CPU."""
    outputs, width = weight.shape
    if weight.device.type != "cuda" or outputs < _FEWEST_COLUMNS:
        return {}
    weights = copies_of(weight)
    tried = (0, *(outputs * part // 16 // _ALIGNMENT * _ALIGNMENT for part in _SIXTEENTHS))
    found: dict[int, int] = {}
    is_warm = False
    for rows in sorted(set(totals) & set(_ROWS)):
        x = torch.randn(rows, width, dtype=weight.dtype, device=weight.device)
        forms = {cut: TimedProduct(multiply, x, weights, 0, cut) for cut in tried}
        if not is_warm:
            _warm(forms[0])
            is_warm = True
        best = _fastest(forms)
        if best:
            found[rows] = best
    return found


def _warm(form: TimedProduct) -> None:
    until = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < until:
        form.microseconds(32)


def _fastest(forms: dict[int, TimedProduct]) -> int:
    """The cut that is, all in turn; 0, the product at once, unless a cut is worth it."""
    times: dict[int, list[float]] = {cut: [] for cut in forms}
    replays = max(1, round(1e6 * _ROUND_SECONDS / forms[0].microseconds() / forms[0].products))
    for _ in range(_ROUNDS):
        for cut, form in forms.items():
            times[cut].append(form.microseconds(replays))
    medians = {cut: statistics.median(each) for cut, each in times.items()}
    whole = medians.pop(0)
    best = min(medians.values())
    if best > _WORTH * whole:
        return 0
    return next(cut for cut, time_taken in medians.items() if time_taken <= _ALIKE * best)
