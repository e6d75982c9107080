"""The decoder of all families (`families.py`). They differ in biases, norms, sliding windows, rope,
activation, scales and soft caps, which `DecoderConfig` and `LayerShape` name.

A forward pass is a pure function of the batch, the KV cache and the weights. It writes the KV of
its own tokens and nothing else. All arithmetic goes through one `Backend`, which decides what is
canonical.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import cast

from holdfast.models.config import DecoderConfig
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.arrays import HOST_ARRAYS, DType, Tensor, arrays_on
from holdfast.numerics.blocks import BlockBackend, Blocks
from holdfast.numerics.experts import Experts
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin, write_kv
from holdfast.numerics.ops import Backend, Linear
from holdfast.numerics.rope import rope_tables


@dataclass(frozen=True)
class LayerHook:
    """A function that is called between layers of a forward pass.

    call(number of layers done, residual, x) may change residual and x [tokens, hidden] in place; x
    is the normed input of the next layer. after: the numbers of layers done at which it is called.
    """

    call: Callable[[int, Tensor, Tensor], None]
    after: tuple[int, ...]


@dataclass(frozen=True)
class NamedLinear:
    """A linear layer of the model, with its name in the certificate.

    layer: its index; None for the LM head. is_routed: it runs in canonical form in all passes, as
    the number of its tokens is not the pass's. expert: the index of its expert.
    """

    name: str
    linear: Linear
    layer: int | None
    is_routed: bool = False
    expert: int | None = None

    @property
    def is_head(self) -> bool:
        return self.layer is None


class Decoder:
    """The weights of a model and its forward pass."""

    def __init__(
        self,
        config: DecoderConfig,
        backend: Backend,
        embedding: Tensor | Blocks | Linear,
        first_norm: Tensor | None,
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
        # Computed on the CPU: the same bits on every device. fp32 [max_len, head_dim / 2] each.
        xp = arrays_on(backend.device)
        tables = (rope_tables(*rope_frequencies(config, kind), max_len) for kind in config.rope_kinds)
        self._ropes = [(xp.from_numpy(cos), xp.from_numpy(sin)) for cos, sin in tables]
        self._shape = layer_shape(config)
        self.dtype: DType = xp.dtype(backend.recipe.dtype)
        dtype = HOST_ARRAYS.dtype(backend.recipe.dtype)
        self._embedding_scale = float(HOST_ARRAYS.tensor(config.embedding_scale, dtype=dtype))

    def with_backend(self, backend: Backend) -> "Decoder":
        """Return the same weights with another backend of the same kind and device. Nothing is copied."""
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
        ropes = self._ropes_at(batch.positions)
        _, x = self._run(self._layers, batch, kv, ropes, canonical, layer_hook)
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
        assert layer_hook is None or max(layer_hook.after) < len(self._layers), (
            "the hook is for the last layer"
        )
        ropes = self._ropes_at(batch.positions)
        residual, x = self._run(self._layers[:-1], batch, kv[:-1], ropes, canonical, layer_hook)
        last = self._layers[-1]
        rope = ropes[last.rope]
        write_kv(self.backend, x, last, self._shape, kv[-1], batch, rope, canonical=canonical)
        return residual, x

    def forward_last_layer(
        self, residual: Tensor, x: Tensor, batch: ForwardBatch, kv: Sequence[KVLayer], *, canonical: bool
    ) -> Tensor:
        """Return the last layer, for all or some tokens of `forward_body`; return the input of the LM
        head, [tokens, hidden].

        residual and x [tokens, hidden] are updated in place.
        """
        batch = self._prepare(batch)
        last = self._layers[-1]
        rope = self.rope_at(batch.positions, last.rope)
        self.backend.layer(residual, x, last, self._shape, kv[-1], batch, rope, canonical=canonical)
        return x

    def _run(
        self,
        layers: Sequence[LayerWeights],
        batch: ForwardBatch,
        kv: Sequence[KVLayer],
        ropes: Sequence[RopeCosSin],
        canonical: bool,
        layer_hook: LayerHook | None,
    ) -> tuple[Tensor, Tensor]:
        """Embed the batch and run these layers: residual and x, [tokens, hidden] each."""
        ops, shape = self.backend, self._shape
        batch = self._prepare(batch)
        residual = self.embed(batch.token_ids)
        if self._first_norm is None:
            x = residual.clone()
        else:
            x = ops.rms_norm(residual, self._first_norm, shape.eps, centered=shape.centered_norm)
        if layer_hook is None:
            ops.layers(residual, x, layers, shape, kv, batch, ropes, canonical=canonical)
            return residual, x
        done = 0
        for stop in sorted({*layer_hook.after, len(layers)}):
            some, layer_kv = layers[done:stop], kv[done:stop]
            ops.layers(residual, x, some, shape, layer_kv, batch, ropes, canonical=canonical)
            done = stop
            if done in layer_hook.after:
                layer_hook.call(done, residual, x)
        return residual, x

    def _prepare(self, batch: ForwardBatch) -> ForwardBatch:
        return self.backend.prepare(batch, self.config.num_heads, self.config.num_kv_heads)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings: int64 [tokens] -> [tokens, hidden]."""
        embedded = self._embed(token_ids)
        return embedded if self._embedding_scale == 1.0 else embedded.mul_(self._embedding_scale)

    def _embed(self, token_ids: Tensor) -> Tensor:
        embedding = self._embedding
        if isinstance(embedding, Linear):
            return cast(BlockBackend, self.backend).embed_packed(embedding, token_ids)
        if isinstance(embedding, Blocks):
            return cast(BlockBackend, self.backend).embed_blocks(embedding, token_ids)
        return self.backend.embed(embedding, token_ids)

    def rope_at(self, positions: Tensor, index: int = 0) -> RopeCosSin:
        """Return cosines and sines: positions int64 [tokens] -> cos and sin, fp32 [tokens, head_dim
        / 2] each, of one of the decoder's tables.
        """
        cos, sin = self._ropes[index]
        return RopeCosSin(cos.index_select(0, positions), sin.index_select(0, positions))

    def _ropes_at(self, positions: Tensor) -> list[RopeCosSin]:
        return [self.rope_at(positions, index) for index in range(len(self._ropes))]

    def logits(self, hidden: Tensor, *, canonical: bool) -> Tensor:
        """Multiply by the LM head: hidden [tokens, hidden] -> a new fp32 [tokens, vocab].

        `canonical` may differ from that of the pass: a pass of a certified size may sample any
        number of tokens.
        """
        logits = self.backend.logits(hidden, self._head, canonical=canonical)
        if self.config.logits_scale != 1.0:
            logits.mul_(self.config.logits_scale)
        if self.config.logits_soft_cap is not None:
            self.backend.soft_cap(logits, self.config.logits_soft_cap)
        return logits

    @property
    def first_norm(self) -> Tensor | None:
        """The norm before the first layer."""
        return self._first_norm

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        return self._layers

    @property
    def layer_shape(self) -> LayerShape:
        return self._shape

    def linears(self) -> Iterator[NamedLinear]:
        """Yield all linear layers, layer by layer, the LM head last."""
        for index, layer in enumerate(self._layers):
            if layer.mixer is not None:
                yield NamedLinear(f"layers.{index}.mixer_in", layer.mixer.in_proj, index)
                yield NamedLinear(f"layers.{index}.mixer_out", layer.mixer.out_proj, index)
            if layer.qkv is not None and layer.o is not None:
                yield NamedLinear(f"layers.{index}.qkv", layer.qkv, index)
                yield NamedLinear(f"layers.{index}.o", layer.o, index)
            if layer.gate_up is not None and layer.down is not None:
                yield NamedLinear(f"layers.{index}.gate_up", layer.gate_up, index)
                yield NamedLinear(f"layers.{index}.down", layer.down, index)
            if layer.experts is not None:
                yield from _expert_linears(layer.experts, index)
        yield NamedLinear("head", self._head, None)


def _expert_linears(layer: Experts, index: int) -> Iterator[NamedLinear]:
    yield NamedLinear(f"layers.{index}.router", layer.router, index, is_routed=True)
    for number, (gate_up, down) in enumerate(zip(layer.gate_up.linears, layer.down.linears, strict=True)):
        name = f"layers.{index}.{number}.expert"
        yield NamedLinear(f"{name}_gate_up", gate_up, index, is_routed=True, expert=number)
        yield NamedLinear(f"{name}_down", down, index, is_routed=True, expert=number)
    if layer.shared_gate is not None:
        yield NamedLinear(f"layers.{index}.shared_gate", layer.shared_gate, index, is_routed=True)
    if layer.shared is not None:
        yield NamedLinear(f"layers.{index}.shared_gate_up", layer.shared.gate_up, index)
        yield NamedLinear(f"layers.{index}.shared_down", layer.shared.down, index)


def layer_shape(config: DecoderConfig) -> LayerShape:
    """Return what all layers of a decoder share."""
    scale = 1.0 / math.sqrt(config.head_dim) if config.attention_scale is None else config.attention_scale
    return LayerShape(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        scale=scale,
        activation=config.activation,
        soft_cap=config.attention_soft_cap,
        residual_scale=config.residual_scale,
        is_parallel=config.block == "parallel",
        centered_norm=config.norm == "layer",
        clip_qkv=config.clip_qkv,
        swiglu_alpha=config.swiglu_alpha,
        swiglu_limit=config.swiglu_limit,
        gated_attention=config.gated_attention,
    )
