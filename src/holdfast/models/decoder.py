"""The one decoder: Llama, Mistral, Qwen2 and Qwen3 differ in biases, norms on q and k, windows and rope, not in shape.

A forward is a pure function of (rows, KV before, weights); it writes the KV of its own rows and nothing else. All
numbers go through one `Backend`, so what is canonical is decided there and not here.
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

Progress = Callable[[int, int], None]  # (tensors done, tensors in all)


@dataclass(frozen=True)
class LayerHook:
    """What is done between the layers, the last time behind the first `last` of them.

    act(layers done, residual, x) may change both in place, [rows, hidden]; x is what the next layer reads, normed.
    """

    act: Callable[[int, Tensor, Tensor], None]
    last: int


@dataclass(frozen=True)
class NamedLinear:
    """A matrix product of the model, by the name the certificate gives it."""

    name: str
    linear: Linear
    layer: int | None

    @property
    def is_head(self) -> bool:
        return self.layer is None


class Decoder:
    """Weights and the forward over them."""

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
        # Made on the CPU wherever they are used: the same bits on every device.
        cos, sin = rope_tables(*rope_frequencies(config), max_len)  # fp32 [max_len, head_dim / 2]
        self._cos, self._sin = cos.to(backend.device), sin.to(backend.device)
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._shape = LayerShape(heads, kv_heads, dim, config.rms_norm_eps, scale=dim**-0.5)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def with_backend(self, backend: Backend) -> "Decoder":
        """The same weights under another backend of the same path and device; nothing is copied."""
        other = copy(self)
        other.backend = backend
        return other

    def forward(
        self,
        rows: ForwardBatch,
        kv: Sequence[KVLayer],
        *,
        canonical: bool,
        layer_hook: LayerHook | None = None,
    ) -> Tensor:
        """Run the rows and write their KV; all of them as the head takes them, [rows, hidden]."""
        at = self.rope_at(rows.positions)
        _, x = self._run(self._layers, rows, kv, at, canonical, layer_hook)
        return x

    def forward_body(
        self,
        rows: ForwardBatch,
        kv: Sequence[KVLayer],
        *,
        canonical: bool,
        layer_hook: LayerHook | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the rows and write their KV, but nothing else of the last layer: what it reads, [rows, hidden] each."""
        assert layer_hook is None or layer_hook.last < len(self._layers), (
            "somebody looks behind the last layer"
        )
        at = self.rope_at(rows.positions)
        residual, x = self._run(self._layers[:-1], rows, kv[:-1], at, canonical, layer_hook)
        write_kv(self.backend, x, self._layers[-1], self._shape, kv[-1], rows, at, canonical=canonical)
        return residual, x

    def forward_last_layer(
        self, residual: Tensor, x: Tensor, rows: ForwardBatch, kv: Sequence[KVLayer], *, canonical: bool
    ) -> Tensor:
        """The last layer, for all rows that `body` left or some of them; as the head takes them. Both are changed."""
        at = self.rope_at(rows.positions)
        last = self._layers[-1]
        self.backend.layer(residual, x, last, self._shape, kv[-1], rows, at, canonical=canonical)
        return x

    def _run(
        self,
        layers: Sequence[LayerWeights],
        rows: ForwardBatch,
        kv: Sequence[KVLayer],
        at: RopeCosSin,
        canonical: bool,
        layer_hook: LayerHook | None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and x behind the first layers."""
        ops, shape = self.backend, self._shape
        residual = self.embed(rows.token_ids)
        x = ops.rms_norm(residual, self._first_norm, shape.eps)
        for index, (weights, layer) in enumerate(zip(layers, kv, strict=True)):
            ops.layer(residual, x, weights, shape, layer, rows, at, canonical=canonical)
            if layer_hook is not None:
                layer_hook.act(index + 1, residual, x)
        return residual, x

    def embed(self, token_ids: Tensor) -> Tensor:
        """int64 [rows] -> [rows, hidden]."""
        return self.backend.embed(self._embedding, token_ids)

    def rope_at(self, positions: Tensor) -> RopeCosSin:
        """int64 [rows] -> fp32 [rows, head_dim / 2] each."""
        return RopeCosSin(self._cos[positions], self._sin[positions])

    def logits(self, hidden: Tensor, *, canonical: bool) -> Tensor:
        """The head over what `forward` returned: a new fp32 [rows, vocab].

        It is switched by itself: a certified pass has a certified number of rows, but any number of wanted ones.
        """
        return self.backend.logits(hidden, self._head, canonical=canonical)

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        return self._layers

    @property
    def layer_shape(self) -> LayerShape:
        return self._shape

    def linears(self) -> Iterator[NamedLinear]:
        """Every matrix product with its real weights, layer by layer, the head last."""
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
    """Read every weight once, round it to dtype, bring it to the backend's device and pack it there.

    On the host there is never more than one tensor; on the device never more than the weights and one tensor. A path whose
    `pack` keeps the weight as it is shares a tied head with the embedding.
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
    """TensorSource by name: of a `Checkpoint`, all that is needed to load them."""

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor: ...


class WeightLoader:
    """Takes tensors out of a checkpoint and reports how far it is."""

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
        """A tensor on the device that shares no memory with the file."""
        found = self._read(name)
        here = found.to(self._device)
        return here.clone() if here is found and self._device.type == "cpu" else here

    def layer(self, at: str, next_norm: Tensor, window: int | None) -> LayerWeights:
        """The layer whose tensors' names begin so."""
        return LayerWeights(
            qkv=self._linear(*(f"{at}self_attn.{name}_proj" for name in "qkv")),
            q_norm=self._optional(f"{at}self_attn.q_norm.weight"),
            k_norm=self._optional(f"{at}self_attn.k_norm.weight"),
            o=self._linear(f"{at}self_attn.o_proj"),
            post_norm=self.tensor(f"{at}post_attention_layernorm.weight"),
            gate_up=self._linear(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
            down=self._linear(f"{at}mlp.down_proj"),
            next_norm=next_norm,
            window=window,
        )

    def _linear(self, *names: str) -> Linear:
        """Several projections of the same input as one product."""
        weight = self._fused([f"{name}.weight" for name in names])  # [sum of outputs, inputs]
        biases = [f"{name}.bias" for name in names]
        bias = self._fused(biases) if self._names.issuperset(biases) else None  # [sum of outputs]
        return self._backend.pack(weight, bias)

    def _fused(self, names: Sequence[str]) -> Tensor:
        """TensorSource below one another, each read into its place."""
        if len(names) == 1:
            return self.tensor(names[0])
        shapes = [self._checkpoint.shape(name) for name in names]
        num_rows = sum(shape[0] for shape in shapes)
        whole = torch.empty((num_rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            whole[start : start + shape[0]].copy_(self._read(name))
            start += shape[0]
        return whole

    def _optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self._names else None

    def _read(self, name: str) -> Tensor:
        tensor = self._checkpoint.tensor(name, self._dtype)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._names))
        return tensor
