"""What the recipe of a product costs against the library's own call, in device time. It is reported and decides nothing.

Calls are captured in one graph, over several copies of the weight, so that neither Python nor a weight kept in the device's
cache is what is measured. The slices' sums are not added here: the kernel that reads the product adds them as it reads.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Multiply = Callable[[Tensor, Tensor, int], Tensor]

PLAIN = -1  # slices of the library's own call, whatever the recipe
TIMED_ROWS = (1, 32, 128, 256, 1024, 4096)
_MORE_THAN_CACHED = 256 << 20  # bytes of weights
_ROUNDS = 5


def time_products(
    multiply: Multiply, weight: Tensor, slices: int, rows: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """(rows, time with these slices / time of the plain call). Nothing on a CPU, whose times say nothing of a GPU."""
    if weight.device.type != "cuda":
        return ()
    copies = -(-_MORE_THAN_CACHED // (weight.numel() * weight.element_size()))
    weights = [weight, *(weight.clone() for _ in range(copies - 1))]
    ratios = []
    for count in rows:
        x = torch.randn(count, weight.shape[1], dtype=weight.dtype, device=weight.device)
        plain, cut = (_microseconds(multiply, x, weights, each) for each in (PLAIN, slices))
        ratios.append((count, round(cut / plain, 3)))
    return tuple(ratios)


def _microseconds(multiply: Multiply, x: Tensor, weights: Sequence[Tensor], slices: int) -> float:
    """Of the product with each weight in turn, the best of some rounds."""

    def all_of_them() -> None:
        for weight in weights:
            multiply(x, weight, slices)

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(x.device)
    with torch.cuda.stream(torch.cuda.Stream(x.device)):  # type: ignore[no-untyped-call]
        all_of_them()  # kernels are compiled and libraries allocate outside of the capture
        graph.capture_begin()
        all_of_them()
        graph.capture_end()
    torch.cuda.synchronize(x.device)
    graph.replay()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    best = float("inf")
    for _ in range(_ROUNDS):
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        best = min(best, began.elapsed_time(ended))
    return 1000 * best / len(weights)
