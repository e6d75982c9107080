"""Matrix products on a GPU: the vendor library's GEMM, or split-K with a fixed order of the partial
sums.

For few rows and a long K the library splits K, by a factor that depends on the number of rows. That
makes bits depend on the batch. Here split-K is a batched GEMM with a fixed factor, one matrix per
split, which the library does not split further. The kernel that reads the result adds the partial
sums (`partial_sums.py`):

    finished       dtype [rows, N]           the library's own GEMM, rounded by it
    partial sums   fp32 [split_k, rows, N]   added in order, then the bias, then rounded once

Few rows go to a kernel of our own (`small_m_gemm.py`), which sums K in the library's order. At some
numbers of rows a finished result is computed as two GEMMs, split along N, if that is faster
(`certification/gemm/split.py`). The bits are the same.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.numerics.backends.triton.gemms import small_m_gemm
from holdfast.numerics.ops import Linear


def multiply(x: Tensor, w: Linear, *, slab: int | None = None, vendor_gemm: bool = False) -> Tensor:
    """x [rows, K] -> a finished result or partial sums, as `w.split_k` says. vendor_gemm: always
    the library's own GEMM.

    slab: multiply in slabs of exactly this many rows, the last one padded with zeros. This is the
    canonical form.
    """
    rows, split_k = x.shape[0], w.split_k
    if vendor_gemm:
        return _library_gemm(x, w.data, 0)
    if slab is None:
        if small_m_gemm.supports(rows, w.data, split_k):
            return small_m_gemm.multiply(x, w.data, split_k)
        num_first = 0 if split_k else w.split_n.get(rows, 0)
        return _multiply_split_n(x, w.data, num_first) if num_first else _library_gemm(x, w.data, split_k)
    slabs = -(-rows // slab) or 1
    if rows < slabs * slab:
        x = F.pad(x, (0, 0, 0, slabs * slab - rows))
    if slabs == 1:
        return _library_gemm(x, w.data, split_k)[..., :rows, :]
    return _multiply_slabs(x, w.data, split_k, slab)[..., :rows, :]


def multiply_fp32(x: Tensor, w: Linear, *, slab: int | None = None) -> Tensor:
    """Return the same sums as fp32 partial sums, also if the recipe has no split-K.

    For logits, which stay fp32.
    """
    split = w if w.split_k else Linear(w.data, w.bias, w.in_features, w.out_features, w.dtype, split_k=1)
    return multiply(x, split, slab=slab)


def _multiply_slabs(x: Tensor, weight: Tensor, split_k: int, slab: int) -> Tensor:
    """One GEMM after the other, each writing its rows of the result."""
    splits = (split_k,) if split_k else ()
    dtype = torch.float32 if split_k else x.dtype
    out = torch.empty((*splits, len(x), len(weight)), dtype=dtype, device=x.device)
    for start in range(0, len(x), slab):
        rows = slice(start, start + slab)
        _library_gemm(x[rows], weight, split_k, out=out[..., rows, :])
    return out


def _multiply_split_n(x: Tensor, weight: Tensor, num_first: int) -> Tensor:
    """Run the library's own GEMM for the first `num_first` output columns, then for the others."""
    out = x.new_empty((x.shape[0], weight.shape[0]))
    torch.mm(x, weight[:num_first].t(), out=out[:, :num_first])
    torch.mm(x, weight[num_first:].t(), out=out[:, num_first:])
    return out


def _library_gemm(x: Tensor, weight: Tensor, split_k: int, *, out: Tensor | None = None) -> Tensor:
    if x.is_meta:  # for its products torch imports a tracing compiler, which takes seconds
        shape = (split_k, len(x), len(weight)) if split_k else (len(x), len(weight))
        return x.new_empty(shape, dtype=torch.float32 if split_k else x.dtype)
    if split_k == 0 and out is not None:
        return torch.mm(x, weight.t(), out=out)
    if split_k == 0:
        return F.linear(x, weight)
    rows, width = x.shape
    x_splits = x.view(rows, split_k, width // split_k).transpose(0, 1)  # [S, rows, K / S]
    w_splits = weight.view(-1, split_k, width // split_k).permute(1, 2, 0)  # [S, K / S, N]
    if x.device.type != "cuda":
        return torch.bmm(x_splits.to(torch.float32), w_splits.to(torch.float32), out=out)
    if x.dtype is torch.float32:
        return torch.bmm(x_splits, w_splits, out=out)
    if out is None:
        return torch.bmm(x_splits, w_splits, out_dtype=torch.float32)
    return torch.bmm(x_splits, w_splits, out_dtype=torch.float32, out=out)
