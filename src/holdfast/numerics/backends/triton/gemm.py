"""Matrix products on a GPU: the library's own, or the library's with K cut in split_k, whose sums are added in one order.

A library splits K for few rows of a long sum, and by how much depends on the number of rows: that is what makes bits depend
on the batch. Cut into split_k that are a batch of products each, K is never split behind our back. What is added up later,
and by whom, is the business of the kernel that reads the product:

    finished   dtype [rows, N]         the library's own product, rounded by it
    parts      fp32 [split_k, rows, N]  to be added in order, then the bias, then rounded once

Few rows are multiplied by a kernel of our own (`small_m_gemm`), which walks K as the library does. At some numbers of rows a
finished product is made of two, side by side, where that is faster (`certification/split_n.py`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.numerics.backends.triton import small_m_gemm
from holdfast.numerics.ops import Linear


def multiply(x: Tensor, w: Linear, *, slab: int | None = None, vendor_gemm: bool = False) -> Tensor:
    """x [rows, K] -> a finished product or fp32 partial sums, as `w` says. vendor_gemm: always the library's own GEMM.

    With slab, rows are multiplied in slabs of exactly so many, the last one padded: the reference form.
    """
    rows, split_k = x.shape[0], w.split_k
    if vendor_gemm:
        return _product(x, w.data, 0)
    if slab is None:
        if small_m_gemm.takes(rows, w.data, split_k):
            return small_m_gemm.multiply_few(x, w.data, split_k)
        first = 0 if split_k else w.split_n.get(rows, 0)
        return _in_two(x, w.data, first) if first else _product(x, w.data, split_k)
    slabs = -(-rows // slab) or 1
    if rows < slabs * slab:
        x = F.pad(x, (0, 0, 0, slabs * slab - rows))
    if slabs == 1:
        return _product(x, w.data, split_k)[..., :rows, :]
    return torch.cat([_product(some, w.data, split_k) for some in x.split(slab)], -2)[..., :rows, :]


def multiply_wide(x: Tensor, w: Linear, *, slab: int | None = None) -> Tensor:
    """The same sums in fp32 parts, whether the recipe cuts K or not: what logits are made of."""
    cut = w if w.split_k else Linear(w.data, w.bias, w.in_features, w.out_features, w.dtype, split_k=1)
    return multiply(x, cut, slab=slab)


def _in_two(x: Tensor, weight: Tensor, first: int) -> Tensor:
    """The library's own product, so many columns and then the others."""
    out = x.new_empty((x.shape[0], weight.shape[0]))
    torch.mm(x, weight[:first].t(), out=out[:, :first])
    torch.mm(x, weight[first:].t(), out=out[:, first:])
    return out


def _product(x: Tensor, weight: Tensor, split_k: int) -> Tensor:
    if split_k == 0:
        return F.linear(x, weight)
    rows, width = x.shape
    cut_x = x.view(rows, split_k, width // split_k).transpose(0, 1)  # [S, rows, K / S]
    cut_w = weight.view(-1, split_k, width // split_k).permute(1, 2, 0)  # [S, K / S, N]
    if x.device.type != "cuda":
        return torch.bmm(cut_x.to(torch.float32), cut_w.to(torch.float32))
    if x.dtype is torch.float32:
        return torch.bmm(cut_x, cut_w)
    return torch.bmm(cut_x, cut_w, out_dtype=torch.float32)
