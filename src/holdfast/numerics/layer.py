"""One decoder layer: its weights, and the layer as a sequence of backend operations.

A backend may compute a layer, or several, in one call. Its bits must be those of `run_layer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.numerics.arrays import Tensor
from holdfast.numerics.experts import Experts, activate
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.recurrence import Mixer, run_mixer

if TYPE_CHECKING:
    from holdfast.numerics.ops import Backend, Linear


Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "relu2"]


@dataclass(frozen=True)
class LayerShape:
    """What all layers of a decoder share."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float  # of the attention scores
    activation: Activation = "silu"
    soft_cap: float | None = None  # a score becomes cap * tanh(score / cap)
    residual_scale: float = 1.0  # of what a layer adds to the residual
    is_parallel: bool = False  # the MLP reads the input of attention
    centered_norm: bool = False  # norms subtract the mean first: layer norm without bias
    clip_qkv: float | None = None  # q, k and v are clamped to [-clip_qkv, clip_qkv] before rope
    swiglu_alpha: float = 1.0  # of the activation "clamped_swiglu"
    swiglu_limit: float = 0.0
    gated_attention: bool = False  # qkv has a gate for each dim of the attention's output, after v


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. It has attention, a recurrent mixer or both, and a MLP, experts or neither."""

    qkv: "Linear | None"  # fused along the output dimension, as gate_up is; None: there is no attention
    q_norm: Tensor | None  # of a head, or of all heads of a row
    k_norm: Tensor | None
    o: "Linear | None"
    post_norm: Tensor | None  # after attention. None: the residual itself is the input
    gate_up: "Linear | None"  # with the activation "relu2" there is no gate
    down: "Linear | None"
    next_norm: Tensor | None  # after the layer: the first norm of the next layer, or the model's last norm
    window: int | None  # a sliding window in positions; None: full attention
    attention_norm: Tensor | None = None  # of what attention adds to the residual
    mlp_norm: Tensor | None = None  # of what the MLP adds to it
    rope: int = 0  # which of the decoder's rotary tables the layer uses
    experts: Experts | None = None  # in place of gate_up and down
    sinks: Tensor | None = None  # fp32 [heads]: one more score of every query in the softmax's denominator
    mixer: Mixer | None = None  # recurrent

    @property
    def has_mlp(self) -> bool:
        """Return whether it has a MLP or experts."""
        return self.gate_up is not None or self.experts is not None


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
    delta = mix(ops, x, weights, shape, kv, batch, rope, canonical=canonical)  # [tokens, hidden]
    if not weights.has_mlp:
        x.copy_(add_to_residual(ops, residual, delta, weights.attention_norm, weights.next_norm, shape))
        return
    added = add_to_residual(ops, residual, delta, weights.attention_norm, weights.post_norm, shape)
    delta = run_mlp(ops, x if shape.is_parallel else added, weights, shape, canonical=canonical)
    x.copy_(add_to_residual(ops, residual, delta, weights.mlp_norm, weights.next_norm, shape))


def mix(
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
    """Run attention or the mixer on x [tokens, hidden], or both and add them -> [tokens, hidden]."""
    mixed = None
    if weights.mixer is not None:
        assert kv.states is not None, "a recurrent layer needs states"
        mixed = run_mixer(ops, x, weights.mixer, kv.states, batch, canonical=canonical)
        if weights.qkv is None:
            return mixed
    assert weights.o is not None
    q, gate = project(ops, x, weights, shape, kv, batch, rope, canonical=canonical)
    attended = ops.attention(
        *(q, kv, batch),
        scale=shape.scale,
        window=weights.window,
        soft_cap=shape.soft_cap,
        sinks=weights.sinks,
    )  # [tokens, heads * head_dim]
    if gate is not None:
        attended = ops.sigmoid_mul(attended, gate)
    delta = ops.linear(attended, weights.o, canonical=canonical)
    return delta if mixed is None else delta + mixed


def run_layers(
    ops: "Backend",
    residual: Tensor,
    x: Tensor,
    weights: Sequence[LayerWeights],
    shape: LayerShape,
    kv: Sequence[KVLayer],
    batch: ForwardBatch,
    ropes: Sequence[RopeCosSin],
    *,
    canonical: bool,
) -> None:
    """Run consecutive layers, one after the other."""
    for one, layer in zip(weights, kv, strict=True):
        ops.layer(residual, x, one, shape, layer, batch, ropes[one.rope], canonical=canonical)


def run_mlp(
    ops: "Backend", x: Tensor, weights: LayerWeights, shape: LayerShape, *, canonical: bool
) -> Tensor:
    """Run the layer's MLP or its experts: x [tokens, hidden] -> [tokens, hidden]."""
    if weights.experts is not None:
        return ops.experts(x, weights.experts, shape, canonical=canonical)
    assert weights.gate_up is not None
    assert weights.down is not None
    activated = activate(ops, ops.linear(x, weights.gate_up, canonical=canonical), shape)
    return ops.linear(activated, weights.down, canonical=canonical)


def add_to_residual(
    ops: "Backend",
    residual: Tensor,
    delta: Tensor,
    delta_norm: Tensor | None,
    norm: Tensor | None,
    shape: LayerShape,
) -> Tensor:
    """residual += residual_scale * norm(delta) in place; return the norm of the sum. All [tokens,
    hidden]; None for a norm: there is none."""
    return ops.add_rms_norm(
        residual,
        delta,
        norm,
        shape.eps,
        delta_norm=delta_norm,
        delta_scale=shape.residual_scale,
        centered=shape.centered_norm,
    )


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
    return project(ops, x, weights, shape, kv, batch, rope, canonical=canonical)[0]


def project(
    ops: "Backend",
    x: Tensor,
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    batch: ForwardBatch,
    rope: RopeCosSin,
    *,
    canonical: bool,
) -> tuple[Tensor, Tensor | None]:
    """As `write_kv`; return the gates [tokens, heads * head_dim] of the attention's output, too."""
    assert weights.qkv is not None
    heads, kv_heads = shape.heads, shape.kv_heads
    num_heads = heads + 2 * kv_heads
    width = num_heads * shape.head_dim
    projected = ops.linear(x, weights.qkv, canonical=canonical)
    gate = projected[:, width:] if shape.gated_attention else None
    qkv = projected[:, :width].view(-1, num_heads, shape.head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if weights.q_norm is not None and weights.k_norm is not None:
        q = _norm_heads(ops, q, weights.q_norm, shape)
        k = _norm_heads(ops, k, weights.k_norm, shape)
    if shape.clip_qkv is not None:
        for part in (q, k, v):
            part.clamp_(-shape.clip_qkv, shape.clip_qkv)
    ops.rope(q, k, rope.cos, rope.sin)
    ops.store_kv(k, v, kv, batch.slots)
    return q, gate


def _norm_heads(ops: "Backend", x: Tensor, weight: Tensor, shape: LayerShape) -> Tensor:
    """Return the norm of each head of x [tokens, heads, head_dim], or of all heads of a token together, as
    the weight's size says."""
    if weight.numel() == shape.head_dim:
        return ops.rms_norm(x, weight, shape.eps, centered=shape.centered_norm)
    return ops.rms_norm(x.flatten(1), weight, shape.eps, centered=shape.centered_norm).view(x.shape)
