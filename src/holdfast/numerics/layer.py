"""One decoder layer: its weights, and the layer as a sequence of backend operations.

A backend may compute a layer in one call. Its bits must be those of `run_layer`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer

if TYPE_CHECKING:
    from holdfast.numerics.ops import Backend, Linear


@dataclass(frozen=True)
class LayerShape:
    """The shape that all layers of a decoder share. scale multiplies the attention scores."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. qkv and gate_up are fused along the output dimension.

    post_norm comes after attention. next_norm comes after the layer: the first norm of the next
    layer, or the model's final norm. window: sliding window in positions; None: full attention.
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
    """Rope cosines and sines of the tokens of a pass: fp32 [tokens, head_dim / 2], gathered by
    position."""

    cos: Tensor
    sin: Tensor


def run_layer(
    ops: "Backend",
    residual: Tensor,
    x: Tensor,
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    batch: ForwardBatch,
    rope: RopeCosSin,
    *,
    canonical: bool,
) -> None:
    """Update residual and x [tokens, hidden] in place.

    x is the normed input of the layer, then that of the next one.
    """
    q = write_kv(ops, x, weights, shape, kv, batch, rope, canonical=canonical)  # [tokens, heads, head_dim]
    attended = ops.attention(q, kv, batch, scale=shape.scale, window=weights.window)  # [tokens, heads * dim]
    delta = ops.linear(attended, weights.o, canonical=canonical)  # [tokens, hidden]
    normed = ops.add_rms_norm(residual, delta, weights.post_norm, shape.eps)
    activated = ops.silu_mul(
        ops.linear(normed, weights.gate_up, canonical=canonical)
    )  # [tokens, intermediate]
    delta = ops.linear(activated, weights.down, canonical=canonical)  # [tokens, hidden]
    x.copy_(ops.add_rms_norm(residual, delta, weights.next_norm, shape.eps))


def write_kv(
    ops: "Backend",
    x: Tensor,
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    batch: ForwardBatch,
    rope: RopeCosSin,
    *,
    canonical: bool,
) -> Tensor:
    """Write K and V of the normed tokens x [tokens, hidden] to their slots; return their queries
    [tokens, heads, head_dim].

    Tokens that are needed only as context skip the rest of the last layer.
    """
    heads, kv_heads = shape.heads, shape.kv_heads
    qkv = ops.linear(x, weights.qkv, canonical=canonical).view(-1, heads + 2 * kv_heads, shape.head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if weights.q_norm is not None and weights.k_norm is not None:
        q = ops.rms_norm(q, weights.q_norm, shape.eps)
        k = ops.rms_norm(k, weights.k_norm, shape.eps)
    ops.rope(q, k, rope.cos, rope.sin)
    ops.store_kv(k, v, kv, batch.slots)
    return q
