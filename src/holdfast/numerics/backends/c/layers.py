"""Consecutive decoder layers as the layer kernel reads them: an array of words, made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np
from numpy.typing import NDArray

from holdfast.numerics.arrays import DType, Tensor
from holdfast.numerics.backends.c.kernels import CODES, address, is_fp32
from holdfast.numerics.backends.c.recurrence import check_gated_norm, recurrent_words
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights
from holdfast.numerics.recurrence import Mixer, ShortConv

MAX_HEAD_DIM = 256  # MAX_DIM in attention.c
MAX_ROPES = 2  # `Layers` in kernels.h


@dataclass(frozen=True)
class LayerTable:
    """Layers and their KV in the order of the fields of `Layer` in kernels.h, checked.

    It keeps the tensors alive whose addresses it holds.
    """

    weights: tuple[LayerWeights, ...]
    shape: LayerShape
    kv: tuple[KVLayer, ...]
    words: NDArray[np.int64]  # [layers, fields]
    address: int  # of the words
    hidden: int
    recurrent: tuple[NDArray[np.int64], ...]  # `Recurrent` of each recurrent layer

    @property
    def is_recurrent(self) -> bool:
        return bool(self.recurrent)

    def holds(self, weights: Sequence[LayerWeights], shape: LayerShape, kv: Sequence[KVLayer]) -> bool:
        """Return whether these are its layers."""
        return (
            shape is self.shape
            and len(weights) == len(self.weights) == len(kv)
            and all(map(is_, weights, self.weights))
            and all(map(is_, kv, self.kv))
        )


def is_fusible(weights: LayerWeights, shape: LayerShape) -> bool:
    """Return whether the layer kernel has everything that this layer has."""
    is_both = weights.mixer is not None and weights.qkv is not None
    is_other = weights.sinks is not None or shape.clip_qkv or shape.activation == "clamped_swiglu"
    return weights.experts is None and not is_both and not is_other and weights.rope < MAX_ROPES


def make_table(
    weights: Sequence[LayerWeights], shape: LayerShape, kv: Sequence[KVLayer], dtype: DType
) -> LayerTable:
    """All of them fusible."""
    first = weights[0].qkv if weights[0].mixer is None else weights[0].mixer.in_proj
    assert first is not None
    hidden = first.in_features
    recurrent = [_recurrent_words(one, layer, dtype) for one, layer in zip(weights, kv, strict=True)]
    rows = [
        _words(one, shape, layer, hidden, words, dtype)
        for one, layer, words in zip(weights, kv, recurrent, strict=True)
    ]
    words = np.array(rows, np.int64)
    kept = tuple(one for one in recurrent if len(one))
    return LayerTable(tuple(weights), shape, tuple(kv), words, words.ctypes.data, hidden, kept)


def _recurrent_words(weights: LayerWeights, kv: KVLayer, dtype: DType) -> NDArray[np.int64]:
    """Return `Recurrent` of a layer, without what belongs to a pass; nothing for a layer with attention."""
    if weights.mixer is None:
        return np.empty(0, np.int64)
    assert kv.states is not None
    words = recurrent_words(weights.mixer.recurrence, kv.states, dtype)
    limits = np.array(words.limits, np.float64).view(np.int64)
    parts = (0, 0, *words.addresses, 0, 0, 0, 0, *words.sizes, CODES[dtype], *limits.tolist(), 0)
    return np.array(parts, np.int64)


def _words(
    weights: LayerWeights,
    shape: LayerShape,
    kv: KVLayer,
    hidden: int,
    recurrent: NDArray[np.int64],
    dtype: DType,
) -> list[int]:
    mixer = weights.mixer
    of_mixer = (None, None) if mixer is None else (mixer.in_proj, mixer.out_proj)
    linears = (weights.qkv, weights.o, weights.gate_up, weights.down, *of_mixer)
    assert all(linear is None or linear.dtype == dtype for linear in linears)
    inputs = (weights.qkv if mixer is None else mixer.in_proj, weights.gate_up)
    outputs = (weights.o if mixer is None else mixer.out_proj, weights.down)
    assert all(linear is None or linear.in_features == hidden for linear in inputs)
    assert all(linear is None or linear.out_features == hidden for linear in outputs)
    if mixer is None:
        _check_attention(weights, shape, kv, dtype)
    inner = 0
    if weights.gate_up is not None and weights.down is not None:
        inner = weights.down.in_features
        assert weights.gate_up.out_features == (1 if shape.activation == "relu2" else 2) * inner
    norms = (weights.attention_norm, weights.mlp_norm, weights.post_norm, weights.next_norm)
    norm_code, is_whole = _norm_codes(weights, shape, dtype)
    pointers = [0 if linear is None else linear.data.data_ptr() for linear in linears]
    biases = [address(None if linear is None else linear.bias) for linear in linears]
    return [
        *(*pointers[:4], *biases[:4]),
        *(address(weights.q_norm), address(weights.k_norm)),
        *(norm_address(norm, hidden) for norm in norms),
        sum(bool(linear is not None and linear.blocks) << index for index, linear in enumerate(linears)),
        *(inner, weights.window or 0, norm_code, is_whole),
        *(kv.keys.data_ptr(), kv.values.data_ptr(), weights.rope),
        *(*pointers[4:], *biases[4:], recurrent.ctypes.data),
        *([0] * 8 if mixer is None else _mixer_words(mixer)),
    ]


def _check_attention(weights: LayerWeights, shape: LayerShape, kv: KVLayer, dtype: DType) -> None:
    assert weights.qkv is not None and weights.o is not None
    heads = shape.heads * (2 if shape.gated_attention else 1) + 2 * shape.kv_heads
    assert weights.qkv.out_features == heads * shape.head_dim
    assert weights.o.in_features == shape.heads * shape.head_dim
    assert shape.head_dim <= MAX_HEAD_DIM
    assert kv.keys.dtype == dtype
    assert kv.keys.shape[1:3] == (shape.kv_heads, shape.head_dim)


def _mixer_words(mixer: Mixer) -> list[int]:
    """Return the last fields of `Layer`: the projections' widths and the gate."""
    width, in_width = mixer.recurrence.output_width, mixer.in_proj.out_features
    assert in_width == mixer.recurrence.input_width + (width if mixer.has_gate else 0)
    assert mixer.out_proj.in_features == width
    check_gated_norm(mixer.norm, width, mixer.norm_group)
    is_shared = mixer.norm is not None and mixer.norm.numel() == mixer.norm_group
    return [
        *(in_width, isinstance(mixer.recurrence, ShortConv), mixer.has_gate, address(mixer.norm)),
        *(mixer.norm_group, is_shared, mixer.gates_first),
        int(np.float64(mixer.norm_eps).view(np.int64)),
    ]


def _norm_codes(weights: LayerWeights, shape: LayerShape, dtype: DType) -> tuple[int, bool]:
    """Return the dtype of all norms of a layer, and whether those of q and k are over whole rows."""
    q_norm, k_norm = weights.q_norm, weights.k_norm
    norms = (weights.attention_norm, weights.mlp_norm, weights.post_norm, weights.next_norm, q_norm, k_norm)
    codes = {norm_code(norm, dtype, shape.centered_norm) for norm in norms if norm is not None}
    assert len(codes) <= 1, "the norms of a layer have one dtype"
    is_whole = q_norm is not None and q_norm.numel() != shape.head_dim
    assert q_norm is None or q_norm.numel() == shape.head_dim * (shape.heads if is_whole else 1)
    assert k_norm is None or k_norm.numel() == shape.head_dim * (shape.kv_heads if is_whole else 1)
    return codes.pop() if codes else CODES[dtype], is_whole


def norm_code(weight: Tensor | None, dtype: DType, centered: bool) -> int:
    """Return the code of the weights' dtype: the backend's or fp32."""
    if weight is None:
        return CODES[dtype]
    assert is_fp32(weight) or (weight.dtype == dtype and not centered)
    return CODES[weight.dtype]


def norm_address(weight: Tensor | None, width: int) -> int:
    assert weight is None or (weight.numel() == width and weight.is_contiguous())
    return address(weight)
