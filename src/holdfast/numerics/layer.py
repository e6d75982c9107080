"""One decoder layer: its weights, and how it is made of the backend's operations.

A path of the backend may run a layer in one go; its bits must be those of `run_layer`, operation by operation.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer

if TYPE_CHECKING:
    from holdfast.numerics.ops import Backend, Linear


@dataclass(frozen=True)
class LayerShape:
    """What the layers of one decoder have in common. scale is on the attention scores."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. qkv and gate_up are fused along the outputs.

    post_norm stands behind attention, next_norm behind the layer: the next layer's first norm, or the model's last.
    """

    qkv: "Linear"
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: "Linear"
    post_norm: Tensor
    gate_up: "Linear"
    down: "Linear"
    next_norm: Tensor
    window: int | None


@dataclass(frozen=True)
class RopeCosSin:
    """The rotations of a pass's rows: fp32 [rows, head_dim / 2], gathered by position."""

    cos: Tensor
    sin: Tensor


def run_layer(
    ops: "Backend",
    residual: Tensor,
    x: Tensor,
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    rows: ForwardBatch,
    at: RopeCosSin,
    *,
    canonical: bool,
) -> None:
    """residual and x [rows, hidden] are changed in place: x comes normed and leaves normed for what follows."""
    q = write_kv(ops, x, weights, shape, kv, rows, at, canonical=canonical)  # [rows, heads, head_dim]
    attended = ops.attention(q, kv, rows, scale=shape.scale, window=weights.window)  # [rows, heads * dim]
    delta = ops.linear(attended, weights.o, canonical=canonical)  # [rows, hidden]
    normed = ops.add_rms_norm(residual, delta, weights.post_norm, shape.eps)
    inner = ops.silu_mul(ops.linear(normed, weights.gate_up, canonical=canonical))  # [rows, intermediate]
    delta = ops.linear(inner, weights.down, canonical=canonical)  # [rows, hidden]
    x.copy_(ops.add_rms_norm(residual, delta, weights.next_norm, shape.eps))


def write_kv(
    ops: "Backend",
    x: Tensor,
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    rows: ForwardBatch,
    at: RopeCosSin,
    *,
    canonical: bool,
) -> Tensor:
    """The keys and values of rows that come normed, to their slots; returns their queries. Enough for rows that others look
    back at, and that nobody looks at behind the layer."""
    heads, kv_heads = shape.heads, shape.kv_heads
    qkv = ops.linear(x, weights.qkv, canonical=canonical).view(-1, heads + 2 * kv_heads, shape.head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if weights.q_norm is not None and weights.k_norm is not None:
        q = ops.rms_norm(q, weights.q_norm, shape.eps)
        k = ops.rms_norm(k, weights.k_norm, shape.eps)
    ops.rope(q, k, at.cos, at.sin)
    ops.store_kv(k, v, kv, rows.slots)
    return q
