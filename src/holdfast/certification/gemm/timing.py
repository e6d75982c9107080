"""Device times of GEMMs. Those of recipes are reported and decide nothing.

Calls are captured in one CUDA graph, over several copies of the weight: neither Python nor a weight
in the device's cache is measured. The partial sums of split-K are not added here; the kernel that
reads the product adds them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.certification.gemm.recipes import PLAIN, Multiply

TIMED_SIZES = (1, 32, 128, 256, 1024, 4096)
_MORE_THAN_CACHED = 256 << 20  # bytes of weights
_ROUNDS = 5


class TimedGemm:
    """One form of a GEMM, captured over copies of its weight."""

    def __init__(
        self, multiply: Multiply, x: Tensor, weights: Sequence[Tensor], split_k: int, split_n: int = 0
    ) -> None:
        def run_all() -> None:
            for weight in weights:
                multiply(x, weight, split_k, split_n)

        self.num_gemms = len(weights)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(x.device)
        with torch.cuda.stream(torch.cuda.Stream(x.device)):  # type: ignore[no-untyped-call]
            run_all()  # kernels are compiled and libraries allocate outside of the capture
            self._graph.capture_begin()
            run_all()
            self._graph.capture_end()
        torch.cuda.synchronize(x.device)

    def microseconds(self, times: int = 1) -> float:
        """Of one GEMM, the mean of so many replays, after one that hides the launch."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._graph.replay()
        began.record()
        for _ in range(times):
            self._graph.replay()
        ended.record()
        ended.synchronize()
        milliseconds: float = began.elapsed_time(ended)
        return 1000 * milliseconds / (times * self.num_gemms)


def copies_of(weight: Tensor) -> list[Tensor]:
    """So many copies that they do not fit in the device's cache."""
    copies = -(-_MORE_THAN_CACHED // (weight.numel() * weight.element_size()))
    return [weight, *(weight.clone() for _ in range(copies - 1))]


def time_recipe(
    multiply: Multiply, weight: Tensor, split_k: int, split_n: Mapping[int, int], sizes: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """(batch size, time of the recipe / time of the plain call). Empty on a CPU, whose times say
    nothing about a GPU."""
    if weight.device.type != "cuda":
        return ()
    weights = copies_of(weight)
    ratios = []
    for size in sizes:
        x = torch.randn(size, weight.shape[1], dtype=weight.dtype, device=weight.device)
        plain = TimedGemm(multiply, x, weights, PLAIN)
        ours = TimedGemm(multiply, x, weights, split_k, split_n.get(size, 0))
        times = [(ours.microseconds(), plain.microseconds()) for _ in range(_ROUNDS)]
        best, best_plain = (min(each) for each in zip(*times, strict=True))
        ratios.append((size, round(best / best_plain, 3)))
    return tuple(ratios)
