"""Device time of a product, and what its recipe costs against the library's own call: that is reported and decides nothing.

Calls are captured in one graph, over several copies of the weight, so that neither Python nor a weight kept in the device's
cache is what is measured. The slices' sums are not added here: the kernel that reads the product adds them as it reads.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

PLAIN = -1  # slices of the library's own call, whatever the recipe
TIMED_ROWS = (1, 32, 128, 256, 1024, 4096)
_MORE_THAN_CACHED = 256 << 20  # bytes of weights
_ROUNDS = 5


class Multiply(Protocol):
    """x [rows, K], weight [N, K] -> [rows, N], or with slices fp32 [slices, rows, N]. slices PLAIN: the library's own call;
    cut: so many columns first and the others behind them, 0 for all at once."""

    def __call__(self, x: Tensor, weight: Tensor, slices: int, cut: int = 0, /) -> Tensor: ...


class TimedProduct:
    """One form of a product, captured over copies of its weight."""

    def __init__(
        self, multiply: Multiply, x: Tensor, weights: Sequence[Tensor], slices: int, cut: int = 0
    ) -> None:
        def all_of_them() -> None:
            for weight in weights:
                multiply(x, weight, slices, cut)

        self.products = len(weights)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(x.device)
        with torch.cuda.stream(torch.cuda.Stream(x.device)):  # type: ignore[no-untyped-call]
            all_of_them()  # kernels are compiled and libraries allocate outside of the capture
            self._graph.capture_begin()
            all_of_them()
            self._graph.capture_end()
        torch.cuda.synchronize(x.device)

    def microseconds(self, times: int = 1) -> float:
        """Of one product, the mean of so many replays; one before them hides what it takes to launch them."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._graph.replay()
        began.record()
        for _ in range(times):
            self._graph.replay()
        ended.record()
        ended.synchronize()
        milliseconds: float = began.elapsed_time(ended)
        return 1000 * milliseconds / (times * self.products)


def copies_of(weight: Tensor) -> list[Tensor]:
    """As many as the device cannot keep in its cache."""
    copies = -(-_MORE_THAN_CACHED // (weight.numel() * weight.element_size()))
    return [weight, *(weight.clone() for _ in range(copies - 1))]


def time_products(
    multiply: Multiply, weight: Tensor, slices: int, cuts: Mapping[int, int], rows: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """(rows, time by the recipe / time of the plain call). Nothing on a CPU, whose times say nothing of a GPU."""
    if weight.device.type != "cuda":
        return ()
    weights = copies_of(weight)
    ratios = []
    for count in rows:
        x = torch.randn(count, weight.shape[1], dtype=weight.dtype, device=weight.device)
        plain = TimedProduct(multiply, x, weights, PLAIN)
        ours = TimedProduct(multiply, x, weights, slices, cuts.get(count, 0))
        times = [(ours.microseconds(), plain.microseconds()) for _ in range(_ROUNDS)]
        best, best_plain = (min(each) for each in zip(*times, strict=True))
        ratios.append((count, round(best / best_plain, 3)))
    return tuple(ratios)
