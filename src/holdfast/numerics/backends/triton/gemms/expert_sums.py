"""The outputs of a token's experts as the next kernel reads them.

    outputs   dtype [tokens * top_k, hidden]   the rows of a token's experts, in the order of its top k
    weights   fp32 [tokens, top_k]

Their weighted sum is added in that order in fp32, each term by an fma, then the shared expert's row
times sigmoid(gate), then rounded once. One function computes it, so it has the same bits in every
kernel that needs it.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class ExpertOutputs:
    """shared [tokens, hidden] and gate fp32 [tokens, 1]: of an expert that sees all tokens."""

    outputs: Tensor
    weights: Tensor
    shared: Tensor | None = None
    gate: Tensor | None = None

    @property
    def top_k(self) -> int:
        return self.weights.shape[1]

    @property
    def shared_or_any(self) -> Tensor:
        """As a kernel argument; not read without a shared expert."""
        return self.outputs if self.shared is None else self.shared

    @property
    def gate_or_any(self) -> Tensor:
        return self.weights if self.gate is None else self.gate


@triton.jit
def load_expert_sum(
    outputs, weights, shared, gate, row, column, mask,
    WIDTH: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr,
):  # fmt: skip
    """Some columns of one row, in fp32; the caller rounds. mask and column have one shape."""
    row = row.to(tl.int64)
    total = tl.zeros(column.shape, tl.float32)
    for number in tl.static_range(TOP_K):
        pair = row * TOP_K + number
        value = tl.load(outputs + pair * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        total = tl.fma(value, tl.load(weights + pair) + tl.zeros_like(value), total)
    if HAS_SHARED:
        value = tl.load(shared + row * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        logit = tl.load(gate + row) + tl.zeros_like(value)
        total = tl.fma(value, tl.math.div_rn(tl.zeros_like(value) + 1.0, 1.0 + tl.exp(-logit)), total)
    return total
