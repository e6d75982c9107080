"""Consecutive decoder layers as the layer kernel reads them: an array of words, made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # dtypes in simd.h
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
    is_dense = weights.gate_up is not None and weights.down is not None
    is_other = weights.sinks is not None or shape.clip_qkv or shape.activation == "clamped_swiglu"
    is_plain = weights.mixer is None and not shape.gated_attention
    return is_dense and is_plain and not is_other and weights.rope < MAX_ROPES


def make_table(
    weights: Sequence[LayerWeights], shape: LayerShape, kv: Sequence[KVLayer], dtype: torch.dtype
) -> LayerTable:
    """All of them fusible."""
    assert weights[0].qkv is not None
    hidden = weights[0].qkv.in_features
    rows = [_words(one, shape, layer, hidden, dtype) for one, layer in zip(weights, kv, strict=True)]
    words = np.array(rows, np.int64)
    return LayerTable(tuple(weights), shape, tuple(kv), words, words.ctypes.data, hidden)


def _words(
    weights: LayerWeights, shape: LayerShape, kv: KVLayer, hidden: int, dtype: torch.dtype
) -> list[int]:
    assert weights.qkv is not None and weights.o is not None
    assert weights.gate_up is not None and weights.down is not None
    linears = (weights.qkv, weights.o, weights.gate_up, weights.down)
    assert all(linear.dtype is dtype for linear in linears)
    assert weights.qkv.out_features == (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    assert weights.o.in_features == shape.heads * shape.head_dim
    assert hidden == weights.qkv.in_features == weights.gate_up.in_features
    assert hidden == weights.o.out_features == weights.down.out_features
    assert weights.gate_up.out_features == 2 * weights.down.in_features
    assert shape.head_dim <= MAX_HEAD_DIM
    assert kv.keys.dtype is dtype
    assert kv.keys.shape[1:3] == (shape.kv_heads, shape.head_dim)
    norms = (weights.attention_norm, weights.mlp_norm, weights.post_norm, weights.next_norm)
    norm_code, is_whole = _norm_codes(weights, shape, dtype)
    return [
        *(linear.data.data_ptr() for linear in linears),
        *(address(linear.bias) for linear in linears),
        *(address(weights.q_norm), address(weights.k_norm)),
        *(norm_address(norm, hidden) for norm in norms),
        sum(bool(linear.blocks) << index for index, linear in enumerate(linears)),
        *(weights.down.in_features, weights.window or 0, norm_code, is_whole),
        *(kv.keys.data_ptr(), kv.values.data_ptr(), weights.rope),
    ]


def _norm_codes(weights: LayerWeights, shape: LayerShape, dtype: torch.dtype) -> tuple[int, bool]:
    """Return the dtype of all norms of a layer, and whether those of q and k are over whole rows."""
    q_norm, k_norm = weights.q_norm, weights.k_norm
    norms = (weights.attention_norm, weights.mlp_norm, weights.post_norm, weights.next_norm, q_norm, k_norm)
    codes = {norm_code(norm, dtype, shape.centered_norm) for norm in norms if norm is not None}
    assert len(codes) <= 1, "the norms of a layer have one dtype"
    is_whole = q_norm is not None and q_norm.numel() != shape.head_dim
    assert q_norm is None or q_norm.numel() == shape.head_dim * (shape.heads if is_whole else 1)
    assert k_norm is None or k_norm.numel() == shape.head_dim * (shape.kv_heads if is_whole else 1)
    return codes.pop() if codes else CODES[dtype], is_whole


def norm_code(weight: Tensor | None, dtype: torch.dtype, centered: bool) -> int:
    """Return the code of the weights' dtype: the backend's or fp32."""
    if weight is None:
        return CODES[dtype]
    assert weight.dtype is torch.float32 or (weight.dtype is dtype and not centered)
    return CODES[weight.dtype]


def norm_address(weight: Tensor | None, width: int) -> int:
    assert weight is None or (weight.numel() == width and weight.is_contiguous())
    return address(weight)


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
