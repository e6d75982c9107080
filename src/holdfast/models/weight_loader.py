"""Load the weights of a decoder.

Each tensor is read once. The projections of one input become one linear layer, whose weights stay in
quantised blocks where the backend computes with them.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import cast

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadWeights
from holdfast.models.checkpoint import (
    NORM_NAMES,
    Checkpoint,
    TensorSource,
    inner_names,
    projection_names,
    router_name,
)
from holdfast.models.config import DecoderConfig, Norm
from holdfast.models.decoder import Decoder
from holdfast.models.mixer_loader import load_mixer
from holdfast.models.rope import rotary_order
from holdfast.numerics.arrays import DType, Tensor, arrays_on, main_memory
from holdfast.numerics.blocks import BlockBackend, Blocks, BlockSource
from holdfast.numerics.experts import Expert, ExpertLinears, Experts, SigmoidScores
from holdfast.numerics.layer import LayerWeights
from holdfast.numerics.ops import Backend, Linear

Progress = Callable[[int, int], None]  # (tensors loaded, tensors in total)


_ROUTES = "it decides which experts see a token"
_EMBEDDING = "model.embed_tokens.weight"


def load_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: DType,
    max_len: int,
    progress: Progress | None = None,
) -> Decoder:
    """Read each weight once, round it to dtype, move it to the backend's device and pack it there.
    Weights in quantised blocks that the backend computes with are not dequantised.

    The host holds at most one tensor at a time, the device at most the weights and one tensor. A
    tied LM head shares the embedding's memory if the backend's `pack` does not copy.
    """
    config = checkpoint.config.for_length(max_len)
    loader = WeightLoader(checkpoint, config, backend, dtype, progress)
    shared = loader.packed_embedding() if config.tie_word_embeddings else None
    embedding = loader.embedding() if shared is None else shared
    checkpoint.release()
    prefixes = [f"model.layers.{index}." for index in range(config.num_layers)]
    firsts = [NORM_NAMES[config.block_at(layer)].input for layer in range(config.num_layers)]
    norms = [
        None if first is None else loader.norm(prefix + first)
        for prefix, first in zip(prefixes, firsts, strict=True)
    ]
    norms.append(loader.norm("model.norm.weight"))
    layers: list[LayerWeights] = []
    for index, prefix in enumerate(prefixes):
        layers.append(loader.layer(prefix, norms[index + 1], index))
        checkpoint.release()
    is_shared = config.tie_word_embeddings and not isinstance(embedding, Blocks | Linear)
    tied = cast(Tensor, embedding) if is_shared else None
    head = loader.head(tied) if shared is None else shared
    return Decoder(config, backend, embedding, norms[0], layers, head, max_len)


def norm_dtype(norm: Norm, dtype: DType) -> DType:
    """Return the dtype of the weights of such norms in a model of this dtype."""
    return dtype if norm == "rms" else arrays_on(main_memory(dtype)).float32


class WeightLoader:
    """Load tensors of a checkpoint and report progress."""

    def __init__(
        self,
        checkpoint: TensorSource,
        config: DecoderConfig,
        backend: Backend,
        dtype: DType,
        progress: Progress | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._order = rotary_order(config)
        self._backend = backend
        self._device = backend.device
        self.arrays = arrays_on(backend.device)
        self._dtype = dtype
        self._progress = progress
        self._done = 0
        self._names = frozenset(checkpoint.names())
        self._scales = dict(config.weight_scales)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor on the device that does not share memory with the file."""
        return self._read(name, copies=True)

    def embedding(self) -> Tensor | Blocks:
        """Blocks are copied: a file that changes while it is served changes no answer."""
        blocks = self._blocks([_EMBEDDING])
        return self.tensor(_EMBEDDING) if blocks is None else replace(blocks[0], data=blocks[0].data.clone())

    def packed_embedding(self) -> Linear | None:
        """Return an embedding in blocks that is the LM head, too: packed from the file, without a copy."""
        blocks = self._blocks([_EMBEDDING])
        return None if blocks is None else cast(BlockBackend, self._backend).pack_blocks(blocks)

    def head(self, tied: Tensor | None) -> Linear:
        """Return the LM head. tied: the embedding, if the head shares it."""
        name = "lm_head.weight"
        blocks = self._blocks([name]) if tied is None else None
        if blocks is not None:
            return cast(BlockBackend, self._backend).pack_blocks(blocks)
        return self._backend.pack(self.tensor(name) if tied is None else tied, None)

    def norm(self, name: str) -> Tensor:
        """Return the weight of a norm: in the dtype, or in fp32 with the family's offset added."""
        if self._config.norm == "rms":
            return self.tensor(name)
        weight = self._read(name, self.arrays.float32)
        if weight.device.type == "meta":  # where torch needs seconds to add
            return weight
        return weight + self._config.norm_offset

    def layer(self, prefix: str, next_norm: Tensor | None, index: int | None = None) -> LayerWeights:
        """Return the layer whose tensor names begin with `prefix`. Without an index it is none of the
        decoder's, and attends without a window."""
        config = self._config
        norms = NORM_NAMES[config.block if index is None else config.block_at(index)]
        _, gate_up = projection_names(config)
        has_experts = index is not None and config.has_experts(index)
        is_bare = index is not None and not config.has_mlp(index)
        is_dense = not is_bare and not has_experts
        sizes = None if index is None else config.mixer_sizes(index)
        attends = index is None or config.has_attention(index)
        kind = config.layer_ropes[index] if config.layer_ropes and index is not None else "global"
        return LayerWeights(
            qkv=self._qkv(prefix) if attends else None,
            q_norm=self._head_norm(prefix + "self_attn.q_norm.weight") if attends else None,
            k_norm=self._head_norm(prefix + "self_attn.k_norm.weight") if attends else None,
            o=self.linear(prefix, ("self_attn.o_proj",)) if attends else None,
            post_norm=None if is_bare else self._optional(prefix, norms.post),
            gate_up=self.linear(prefix, gate_up) if is_dense else None,
            down=self.linear(prefix, ("mlp.down_proj",)) if is_dense else None,
            next_norm=next_norm,
            window=None if index is None else config.layer_windows[index],
            attention_norm=self._optional(prefix, norms.attention),
            mlp_norm=None if is_bare else self._optional(prefix, norms.mlp),
            rope=config.rope_kinds.index(kind),
            experts=self._experts(prefix) if has_experts else None,
            sinks=self._sinks(prefix + "self_attn.sinks") if config.attention_sinks else None,
            mixer=None if sizes is None else load_mixer(self, prefix, sizes, config.rms_norm_eps),
        )

    def _head_norm(self, name: str) -> Tensor | None:
        """Return a norm of q or k, whose dims have the order of the heads'."""
        if not self._config.qk_norm:
            return None
        weight = self.norm(name)
        if self._order is None:
            return weight
        heads = weight.view(-1, self._config.head_dim)
        return heads.index_select(1, self.arrays.from_numpy(self._order)).view(-1)

    def _qkv(self, prefix: str) -> Linear:
        config = self._config
        names, _ = projection_names(config)
        if not config.gated_attention:
            return self.linear(prefix, names, is_qkv=True)
        # Each head's q and gate are together in q_proj.
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        order = np.arange(dim) if self._order is None else self._order
        q, gate = np.arange(2 * heads * dim).reshape(heads, 2, dim).swapaxes(0, 1)
        k, v = (np.arange(2 * kv_heads * dim) + 2 * heads * dim).reshape(2, kv_heads, dim)
        parts = (q[:, order], k[:, order], v, gate)
        return self.gathered(prefix, names, [part.reshape(-1) for part in parts])

    def _experts(self, prefix: str) -> Experts:
        config = self._config
        has_shared = config.shared_expert_size > 0
        has_gate = has_shared and config.shared_expert_gate
        return Experts(
            router=self._router(f"{prefix}mlp.{router_name(config)}"),
            gate_up=self._expert_linears(prefix, inner_names(config)),
            down=self._expert_linears(prefix, ("down_proj",)),
            top_k=config.experts_per_token,
            normalizes=config.normalizes_experts,
            shared=self._expert(prefix + "mlp.shared_expert.") if has_shared else None,
            shared_gate=self._router(prefix + "mlp.shared_expert_gate") if has_gate else None,
            sigmoid=self._sigmoid_scores(prefix + "mlp.expert_bias") if config.sigmoid_router else None,
        )

    def _sigmoid_scores(self, name: str) -> SigmoidScores:
        config = self._config
        if not config.expert_bias:
            bias = self.arrays.zeros(config.num_experts)
        else:
            bias = _require_finite(self.fp32(name), name, _ROUTES)
        return SigmoidScores(bias, config.routed_scale, config.router_eps)

    def _expert_linears(self, prefix: str, names: Sequence[str]) -> ExpertLinears:
        count = self._config.num_experts
        if isinstance(self._backend, BlockBackend):
            experts = (f"{prefix}mlp.experts.{number}." for number in range(count))
            return ExpertLinears(tuple(self.linear(each, names) for each in experts))
        weights = (self._weights(f"{prefix}mlp.experts.{number}.", names) for number in range(count))
        return self._backend.pack_experts(weights, count)

    def _expert(self, prefix: str) -> Expert:
        return Expert(
            self.linear(prefix, inner_names(self._config)),
            self.linear(prefix, ("down_proj",)),
        )

    def _router(self, name: str) -> Linear:
        weight = _require_finite(self.tensor(f"{name}.weight"), f"{name}.weight", _ROUTES)
        has_bias = f"{name}.bias" in self._names
        bias = _require_finite(self.tensor(f"{name}.bias"), f"{name}.bias", _ROUTES) if has_bias else None
        return self._backend.pack(weight, bias)

    def _sinks(self, name: str) -> Tensor:
        """fp32, as scores are."""
        return _require_finite(self.fp32(name), name, "it is part of every score's softmax")

    def linear(self, prefix: str, names: Sequence[str], *, is_qkv: bool = False) -> Linear:
        """Join several projections of one input to one linear layer."""
        blocks = self._blocks([f"{prefix}{name}.weight" for name in names])
        if blocks is not None:
            parts = self._reorder_blocks(blocks) if is_qkv else blocks
            bias = self._bias(prefix, names, is_qkv=is_qkv)
            return cast(BlockBackend, self._backend).pack_blocks(parts, bias)
        weight = self._fused([f"{prefix}{name}.weight" for name in names])  # [sum of outputs, inputs]
        if is_qkv:
            self._reorder_heads(weight)
        return self._backend.pack(weight, self._bias(prefix, names, is_qkv=is_qkv))

    def gathered(self, prefix: str, names: Sequence[str], rows: Sequence[NDArray[np.int64]]) -> Linear:
        """Join projections of one input, and put their rows into another order. rows: of all of them, one
        after the other, int64; each part of these is in one of the projections."""
        blocks = self._blocks([f"{prefix}{name}.weight" for name in names])
        order = self.arrays.from_numpy(np.concatenate(rows))
        bias = self._bias(prefix, names, is_qkv=False)
        bias = None if bias is None else bias.index_select(0, order)
        if blocks is not None:
            ends = list(accumulate(block.out_features for block in blocks))
            parts = []
            for part in rows:
                index = bisect_right(ends, int(part[0]))
                first = ends[index] - blocks[index].out_features
                parts.append(replace(blocks[index], data=blocks[index].data[part - first]))
            return cast(BlockBackend, self._backend).pack_blocks(parts, bias)
        weight = self._fused([f"{prefix}{name}.weight" for name in names])
        return self._backend.pack(weight.index_select(0, order), bias)

    def fp32(self, name: str) -> Tensor:
        """Return a tensor in fp32 on the device."""
        return self._read(name, self.arrays.float32, copies=True)

    def _bias(self, prefix: str, names: Sequence[str], *, is_qkv: bool) -> Tensor | None:
        """[sum of outputs], or None."""
        biases = [f"{prefix}{name}.bias" for name in names]
        if not self._names.issuperset(biases):
            return None
        bias = self._fused(biases)
        if is_qkv:
            self._reorder_heads(bias)
        return bias

    def _blocks(self, names: Sequence[str]) -> list[Blocks] | None:
        """Return the matrices in quantised blocks, if the backend computes with all of them."""
        if not isinstance(self._backend, BlockBackend) or not isinstance(self._checkpoint, BlockSource):
            return None
        found = [self._checkpoint.blocks(name) for name in names]
        blocks = [one for one in found if one is not None and one.format in self._backend.block_formats]
        if len(blocks) < len(names):
            return None
        for _ in names:
            self._count()
        return blocks

    def _weights(self, prefix: str, names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of several projections of one input."""
        weight = self._fused([f"{prefix}{name}.weight" for name in names])  # [sum of outputs, inputs]
        return weight, self._bias(prefix, names, is_qkv=False)

    def _reorder_heads(self, qkv: Tensor, first_row: int = 0) -> None:
        """Bring the dims of each q and k head into the order that kernels rotate. qkv: the rows of a
        fused tensor from first_row on."""
        if self._order is None:
            return
        config = self._config
        num_rows = (config.num_heads + config.num_kv_heads) * config.head_dim - first_row
        heads = qkv[: max(0, num_rows)].view(-1, config.head_dim, *qkv.shape[1:])
        heads.copy_(heads[:, arrays_on(qkv.device).from_numpy(self._order)])

    def _reorder_blocks(self, parts: Sequence[Blocks]) -> list[Blocks]:
        if self._order is None:
            return list(parts)
        first_row, found = 0, []
        for part in parts:
            data = part.data.clone()
            self._reorder_heads(data, first_row)
            found.append(replace(part, data=data))
            first_row += part.out_features
        return found

    def _fused(self, names: Sequence[str]) -> Tensor:
        """Return tensors concatenated along the first dimension, each read into its place."""
        if len(names) == 1:
            return self.tensor(names[0])
        shapes = [self._checkpoint.shape(name) for name in names]
        num_outputs = sum(shape[0] for shape in shapes)
        fused = self.arrays.empty((num_outputs, *shapes[0][1:]), dtype=self._dtype)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            fused[start : start + shape[0]].copy_(self._read(name))
            start += shape[0]
        return fused

    def _optional(self, prefix: str, name: str | None) -> Tensor | None:
        return None if name is None else self.norm(prefix + name)

    def _read(self, name: str, dtype: DType | None = None, *, copies: bool = False) -> Tensor:
        """Return a tensor on the device, rounded once. Unless it copies, it may share the file's memory."""
        tensor = self.arrays.from_numpy(self._checkpoint.tensor(name))
        parts = self._scales.get(name.split(".", 3)[-1])
        if parts is not None:
            factors = [self.arrays.full((rows, 1), factor) for rows, factor in parts]
            tensor = tensor.float() * self.arrays.cat(factors)
        self._count()
        return tensor.to(dtype or self._dtype, copy=copies and self._device.type == "cpu")

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._names))


def _require_finite(tensor: Tensor, name: str, purpose: str) -> Tensor:
    if tensor.device.type != "meta" and not bool(tensor.isfinite().all()):
        raise BadWeights(f"{name} contains NaN or infinite numbers; {purpose}")
    return tensor
