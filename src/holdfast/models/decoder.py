"""The one decoder: Llama, Mistral, Qwen2 and Qwen3 differ in biases, norms on q and k, windows and rope, not in shape.

A forward is a pure function of (rows, KV before, weights); it writes the KV of its own rows and nothing else. All
numbers go through one `Arithmetic`, so what is canonical is decided there and not here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.arithmetic.layer import LayerShape, LayerWeights, Positions
from holdfast.arithmetic.ops import Arithmetic, Linear
from holdfast.arithmetic.rope import rope_tables
from holdfast.arithmetic.rows import KVLayer, Rows
from holdfast.models.checkpoint import Checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.rope_scaling import rope_frequencies

Progress = Callable[[int, int], None]  # (tensors done, tensors in all)


@dataclass(frozen=True)
class Product:
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
        arithmetic: Arithmetic,
        embedding: Tensor,
        first_norm: Tensor,
        layers: Sequence[LayerWeights],
        head: Linear,
        max_len: int,
    ) -> None:
        self.config = config
        self.arithmetic = arithmetic
        self._embedding = embedding
        self._first_norm = first_norm
        self._layers = tuple(layers)
        self._head = head
        inv_freq, scaling = rope_frequencies(config)
        self._cos, self._sin = rope_tables(inv_freq, scaling, max_len)  # fp32 [max_len, head_dim / 2]
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._shape = LayerShape(heads, kv_heads, dim, config.rms_norm_eps, scale=dim**-0.5)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(self, rows: Rows, kv: Sequence[KVLayer], wanted: Tensor, *, canonical: bool) -> Tensor:
        """Run the rows, write their KV, and return the wanted ones as the head takes them, [len(wanted), hidden]."""
        ops = self.arithmetic
        at = Positions(self._cos[rows.positions], self._sin[rows.positions])  # [rows, head_dim / 2]
        residual = ops.embed(self._embedding, rows.token_ids)  # [rows, hidden]
        x = ops.rms_norm(residual, self._first_norm, self._shape.eps)
        for weights, layer in zip(self._layers, kv, strict=True):
            ops.layer(residual, x, weights, self._shape, layer, rows, at, canonical=canonical)
        return x[wanted]

    def logits(self, hidden: Tensor, *, canonical: bool) -> Tensor:
        """The head over what `forward` returned: a new fp32 [rows, vocab].

        It is switched by itself: a certified pass has a certified number of rows, but any number of wanted ones.
        """
        return self.arithmetic.logits(hidden, self._head, canonical=canonical)

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        return self._layers

    @property
    def layer_shape(self) -> LayerShape:
        return self._shape

    def products(self) -> Iterator[Product]:
        """Every matrix product with its real weights, layer by layer, the head last."""
        for index, layer in enumerate(self._layers):
            yield Product(f"layers.{index}.qkv", layer.qkv, index)
            yield Product(f"layers.{index}.o", layer.o, index)
            yield Product(f"layers.{index}.gate_up", layer.gate_up, index)
            yield Product(f"layers.{index}.down", layer.down, index)
        yield Product("head", self._head, None)


def load_decoder(
    checkpoint: Checkpoint,
    arithmetic: Arithmetic,
    dtype: torch.dtype,
    max_len: int,
    progress: Progress | None = None,
) -> Decoder:
    """Read every weight once, round it to dtype, and pack it for the arithmetic."""
    loader = _Loader(checkpoint, arithmetic, dtype, progress)
    config = checkpoint.config
    embedding = loader.tensor("model.embed_tokens.weight").clone()
    norms = [
        loader.norm(f"model.layers.{index}.input_layernorm.weight") for index in range(config.num_layers)
    ]
    norms.append(loader.norm("model.norm.weight"))
    layers = [loader.layer(index, norms[index + 1]) for index in range(config.num_layers)]
    head = embedding if config.tie_word_embeddings else loader.tensor("lm_head.weight")
    return Decoder(config, arithmetic, embedding, norms[0], layers, arithmetic.pack(head, None), max_len)


class _Loader:
    """Takes tensors out of a checkpoint and reports how far it is."""

    def __init__(
        self, checkpoint: Checkpoint, arithmetic: Arithmetic, dtype: torch.dtype, progress: Progress | None
    ) -> None:
        self._checkpoint = checkpoint
        self._arithmetic = arithmetic
        self._dtype = dtype
        self._progress = progress
        self._done = 0
        self._names = frozenset(checkpoint.names())

    def tensor(self, name: str) -> Tensor:
        tensor = self._checkpoint.tensor(name, self._dtype)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._names))
        return tensor

    def norm(self, name: str) -> Tensor:
        return self.tensor(name).clone()

    def layer(self, index: int, next_norm: Tensor) -> LayerWeights:
        at = f"model.layers.{index}."
        return LayerWeights(
            qkv=self._linear(*(f"{at}self_attn.{name}_proj" for name in "qkv")),
            q_norm=self._optional(f"{at}self_attn.q_norm.weight"),
            k_norm=self._optional(f"{at}self_attn.k_norm.weight"),
            o=self._linear(f"{at}self_attn.o_proj"),
            post_norm=self.norm(f"{at}post_attention_layernorm.weight"),
            gate_up=self._linear(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
            down=self._linear(f"{at}mlp.down_proj"),
            next_norm=next_norm,
            window=self._checkpoint.config.layer_windows[index],
        )

    def _linear(self, *names: str) -> Linear:
        """Several projections of the same input as one product."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])  # [sum of outputs, inputs]
        biases = [self._optional(f"{name}.bias") for name in names]
        present = [bias for bias in biases if bias is not None]
        return self._arithmetic.pack(weight, torch.cat(present) if len(present) == len(names) else None)

    def _optional(self, name: str) -> Tensor | None:
        return self.tensor(name).clone() if name in self._names else None
