"""A GEMM as the search sees it: a function of the operands, split-K and split-N."""

from typing import Protocol

from torch import Tensor

PLAIN = -1  # as split_k: the library's own call, whatever the recipe


class Multiply(Protocol):
    """x [M, K], weight [N, K] -> [M, N], or with split_k >= 1 the partial sums, fp32 [split_k, M,
    N].

    split_n: compute so many output columns first, then the others; 0: all at once.
    """

    def __call__(self, x: Tensor, weight: Tensor, split_k: int, split_n: int = 0, /) -> Tensor: ...


def library_multiply(x: Tensor, weight: Tensor, split_k: int, split_n: int = 0) -> Tensor:
    """The GEMM of the Triton backend: the library's or, if not PLAIN, its own small-M kernel."""
    from holdfast.numerics.backends.triton.gemms.gemm import multiply
    from holdfast.numerics.ops import Linear

    out_features, in_features = weight.shape
    splits = {x.shape[0]: split_n} if split_n else {}
    linear = Linear(weight, None, in_features, out_features, weight.dtype, max(0, split_k), splits)
    return multiply(x, linear, vendor_gemm=split_k == PLAIN)
