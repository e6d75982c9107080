"""The decoder: Llama, Mistral, Qwen2 and Qwen3. They differ in biases, norms of q and k, sliding
windows and rope.

A forward pass is a pure function of the batch, the KV cache and the weights. It writes the KV of
its own tokens and nothing else. All arithmetic goes through one `Backend`, which decides what is
canonical.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from holdfast.models.checkpoint import Checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, write_kv
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.rope import rope_tables

Progress = Callable[[int, int], None]  # (tensors loaded, tensors in total)


@dataclass(frozen=True)
class LayerHook:
    """A function that is called after each layer of a forward pass.

    call(number of layers done, residual, x) may change residual and x [tokens, hidden] in place; x
    is the normed input of the next layer. last_layer: from this number of layers on, the call does
    nothing.
    """

    call: Callable[[int, Tensor, Tensor], None]
    last_layer: int


@dataclass(frozen=True)
class NamedLinear:
    """A linear layer of the model, with its name in the certificate.

    layer: its index; None for the LM head.
    """

    name: str
    linear: Linear
    layer: int | None

    @property
    def is_head(self) -> bool:
        return self.layer is None


class Decoder:
    """The weights of a model and its forward pass."""

    def __init__(
        self,
        config: DecoderConfig,
        backend: Backend,
        embedding: Tensor,
        first_norm: Tensor,
        layers: Sequence[LayerWeights],
        head: Linear,
        max_len: int,
    ) -> None:
        self.config = config
        self.backend = backend
        self._embedding = embedding
        self._first_norm = first_norm
        self._layers = tuple(layers)
        self._head = head
        # Computed on the CPU: the same bits on every device.
        cos, sin = rope_tables(*rope_frequencies(config), max_len)  # fp32 [max_len, head_dim / 2]
        self._cos, self._sin = cos.to(backend.device), sin.to(backend.device)
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._shape = LayerShape(heads, kv_heads, dim, config.rms_norm_eps, scale=dim**-0.5)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def with_backend(self, backend: Backend) -> "Decoder":
        """The same weights with another backend of the same kind and device. Nothing is copied."""
        other = copy(self)
        other.backend = backend
        return other

    def forward(
        self,
        batch: ForwardBatch,
        kv: Sequence[KVLayer],
        *,
        canonical: bool,
        layer_hook: LayerHook | None = None,
    ) -> Tensor:
        """Run the batch and write its KV; return the input of the LM head, [tokens, hidden]."""
        rope = self.rope_at(batch.positions)
        _, x = self._run(self._layers, batch, kv, rope, canonical, layer_hook)
        return x

    def forward_body(
        self,
        batch: ForwardBatch,
        kv: Sequence[KVLayer],
        *,
        canonical: bool,
        layer_hook: LayerHook | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the batch without the last layer, of which only the KV is written.

        Return residual and x [tokens, hidden], the input of `forward_last_layer`.
        """
        assert layer_hook is None or layer_hook.last_layer < len(self._layers), (
            "the hook is for the last layer"
        )
        rope = self.rope_at(batch.positions)
        residual, x = self._run(self._layers[:-1], batch, kv[:-1], rope, canonical, layer_hook)
        write_kv(self.backend, x, self._layers[-1], self._shape, kv[-1], batch, rope, canonical=canonical)
        return residual, x

    def forward_last_layer(
        self, residual: Tensor, x: Tensor, batch: ForwardBatch, kv: Sequence[KVLayer], *, canonical: bool
    ) -> Tensor:
        """The last layer, for all or some tokens of `forward_body`; return the input of the LM
        head, [tokens, hidden].

        residual and x [tokens, hidden] are updated in place.
        """
        batch = self._prepare(batch)
        rope = self.rope_at(batch.positions)
        last = self._layers[-1]
        self.backend.layer(residual, x, last, self._shape, kv[-1], batch, rope, canonical=canonical)
        return x

    def _run(
        self,
        layers: Sequence[LayerWeights],
        batch: ForwardBatch,
        kv: Sequence[KVLayer],
        rope: RopeCosSin,
        canonical: bool,
        layer_hook: LayerHook | None,
    ) -> tuple[Tensor, Tensor]:
        """Embed the batch and run these layers: residual and x, [tokens, hidden] each."""
        ops, shape = self.backend, self._shape
        batch = self._prepare(batch)
        residual = self.embed(batch.token_ids)
        x = ops.rms_norm(residual, self._first_norm, shape.eps)
        for index, (weights, layer) in enumerate(zip(layers, kv, strict=True)):
            ops.layer(residual, x, weights, shape, layer, batch, rope, canonical=canonical)
            if layer_hook is not None:
                layer_hook.call(index + 1, residual, x)
        return residual, x

    def _prepare(self, batch: ForwardBatch) -> ForwardBatch:
        return self.backend.prepare(batch, self.config.num_heads, self.config.num_kv_heads)

    def embed(self, token_ids: Tensor) -> Tensor:
        """int64 [tokens] -> [tokens, hidden]."""
        return self.backend.embed(self._embedding, token_ids)

    def rope_at(self, positions: Tensor) -> RopeCosSin:
        """Positions int64 [tokens] -> cos and sin, fp32 [tokens, head_dim / 2] each."""
        return RopeCosSin(self._cos[positions], self._sin[positions])

    def logits(self, hidden: Tensor, *, canonical: bool) -> Tensor:
        """The LM head: hidden [tokens, hidden] -> a new fp32 [tokens, vocab].

        `canonical` may differ from that of the pass: a pass of a certified size may sample any
        number of tokens.
        """
        return self.backend.logits(hidden, self._head, canonical=canonical)

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        return self._layers

    @property
    def layer_shape(self) -> LayerShape:
        return self._shape

    def linears(self) -> Iterator[NamedLinear]:
        """All linear layers, layer by layer, the LM head last."""
        for index, layer in enumerate(self._layers):
            yield NamedLinear(f"layers.{index}.qkv", layer.qkv, index)
            yield NamedLinear(f"layers.{index}.o", layer.o, index)
            yield NamedLinear(f"layers.{index}.gate_up", layer.gate_up, index)
            yield NamedLinear(f"layers.{index}.down", layer.down, index)
        yield NamedLinear("head", self._head, None)


def load_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: torch.dtype,
    max_len: int,
    progress: Progress | None = None,
) -> Decoder:
    """Read each weight once, round it to dtype, move it to the backend's device and pack it there.

    The host holds at most one tensor at a time, the device at most the weights and one tensor. A
    tied LM head shares the embedding's memory if the backend's `pack` does not copy.
    """
    config = checkpoint.config
    loader = WeightLoader(checkpoint, backend, dtype, progress)
    embedding = loader.tensor("model.embed_tokens.weight")
    norms = [
        loader.tensor(f"model.layers.{index}.input_layernorm.weight") for index in range(config.num_layers)
    ]
    norms.append(loader.tensor("model.norm.weight"))
    layers = [
        loader.layer(f"model.layers.{index}.", norms[index + 1], config.layer_windows[index])
        for index in range(config.num_layers)
    ]
    head = embedding if config.tie_word_embeddings else loader.tensor("lm_head.weight")
    return Decoder(config, backend, embedding, norms[0], layers, backend.pack(head, None), max_len)


class TensorSource(Protocol):
    """Tensors by name: the part of a `Checkpoint` that loading needs."""

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor: ...


class WeightLoader:
    """Loads tensors of a checkpoint and reports progress."""

    def __init__(
        self,
        checkpoint: TensorSource,
        backend: Backend,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._device = backend.device
        self._dtype = dtype
        self._progress = progress
        self._done = 0
        self._names = frozenset(checkpoint.names())

    def tensor(self, name: str) -> Tensor:
        """A tensor on the device that does not share memory with the file."""
        tensor = self._read(name)
        moved = tensor.to(self._device)
        return moved.clone() if moved is tensor and self._device.type == "cpu" else moved

    def layer(self, prefix: str, next_norm: Tensor, window: int | None) -> LayerWeights:
        """The layer whose tensor names begin with `prefix`."""
        return LayerWeights(
            qkv=self._linear(*(f"{prefix}self_attn.{name}_proj" for name in "qkv")),
            q_norm=self._optional(f"{prefix}self_attn.q_norm.weight"),
            k_norm=self._optional(f"{prefix}self_attn.k_norm.weight"),
            o=self._linear(f"{prefix}self_attn.o_proj"),
            post_norm=self.tensor(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
            down=self._linear(f"{prefix}mlp.down_proj"),
            next_norm=next_norm,
            window=window,
        )

    def _linear(self, *names: str) -> Linear:
        """Several projections of one input as one linear layer."""
        weight = self._fused([f"{name}.weight" for name in names])  # [sum of outputs, inputs]
        biases = [f"{name}.bias" for name in names]
        bias = self._fused(biases) if self._names.issuperset(biases) else None  # [sum of outputs]
        return self._backend.pack(weight, bias)

    def _fused(self, names: Sequence[str]) -> Tensor:
        """Tensors concatenated along the first dimension, each read into its place."""
        if len(names) == 1:
            return self.tensor(names[0])
        shapes = [self._checkpoint.shape(name) for name in names]
        num_outputs = sum(shape[0] for shape in shapes)
        fused = torch.empty((num_outputs, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            fused[start : start + shape[0]].copy_(self._read(name))
            start += shape[0]
        return fused

    def _optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self._names else None

    def _read(self, name: str) -> Tensor:
        tensor = self._checkpoint.tensor(name, self._dtype)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._names))
        return tensor
