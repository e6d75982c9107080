"""The operations a decoder is made of, as one Protocol that every path of the backend implements.

What all of them promise: called with `canonical=True` where there is such a switch, a row of the result
depends on that row of the inputs (and, for attention, on its own sequence's keys and values) and on the
recipe. Not on the number of rows, the row's index, the other rows or the number of threads.

Shapes: rows are tokens; H query heads, KVH kv heads, D head_dim, N and K out and in features, V vocabulary.
Activations, weights and the KV cache share one dtype; inside, everything is fp32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.sampling import SamplingBatch


@dataclass(frozen=True)
class Linear:
    """A weight laid out for one path of the backend; only the path that packed it can read `data`."""

    data: Tensor
    bias: Tensor | None  # fp32 [N]
    in_features: int
    out_features: int
    dtype: torch.dtype
    # For paths that cut K: 0, the library's own product, rounded by the library; S >= 1, S slices whose fp32 sums are
    # added in order, then the bias, then rounded once.
    split_k: int = 0
    # Of a library's own product, by rows: how many columns are multiplied first and the others behind them, because both
    # together are faster than all at once. An output is the same either way.
    split_n: Mapping[int, int] = field(default_factory=dict)


class Backend(Protocol):
    """The backend of a decoder on one device."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def page_size(self) -> int:
        """Positions a KV page of this path holds."""
        ...

    def new_kv_layer(self, num_pages: int, kv_heads: int, head_dim: int) -> KVLayer:
        """Pages of zeros, laid out as this path likes them; the shapes are those of `KVLayer`."""
        ...

    def tile_tokens(self, span_len: int, group: int) -> int:
        """ForwardBatch one attention tile takes in a pass whose longest span has so many, with `group` query heads a kv head.

        0: this path reads no tiles.
        """
        ...

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """weight [N, K] laid out for `linear`. The compiled path copies and does not keep `weight` alive."""
        ...

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        """x [rows, K] -> [rows, N], summed in fp32, bias added in fp32, rounded once to the dtype."""
        ...

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        """x [rows, K] -> fp32 [rows, N]: `linear` without the rounding, where the path can give it."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [rows, D] or [rows, heads, D] -> the same shape: rounded(x / rms(x)) * weight."""
        ...

    def add_rms_norm(self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += delta in place, rounded to the dtype; returns its rms_norm. All [rows, D]."""
        ...

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotates q [rows, H, D] and k [rows, KVH, D] in place (rotate-half).

        cos, sin: fp32 [rows, D / 2], gathered by position. q and k may be views into a fused product.
        """
        ...

    def store_kv(self, k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
        """Writes k, v [rows, KVH, D] to their slots int64 [rows]; slot -1 is skipped."""
        ...

    def attention(
        self, q: Tensor, layer: KVLayer, rows: ForwardBatch, *, scale: float, window: int | None
    ) -> Tensor:
        """q [rows, H, D] -> [rows, H * D]; padding rows give zeros.

        The row at position p sees positions max(0, p - window + 1) .. p of its span's sequence, all stored
        before.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [rows, 2 * I] -> rounded(silu(gate)) * up, [rows, I]."""
        ...

    def layer(
        self,
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
        """A whole layer, with the bits of `layer.run_layer`: residual and x [rows, hidden] are changed in place."""
        ...

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        """table [V, D], token_ids int64 [rows] -> [rows, D]; an id below 0 reads as 0."""
        ...

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """logits fp32 [n, V] -> token ids int64 [n], by the rule of `choice.py`."""
        ...

    def sample_greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best of each row: ids int64 [n], as `choose` at temperature 0, and its logprobs fp32 [n]."""
        ...

    def logsumexp(self, logits: Tensor) -> Tensor:
        """logits fp32 [n, V] -> fp32 [n]."""
        ...

    def topk(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best: values fp32 [n, k] in descending order and ids int64 [n, k], ties to the lowest id."""
        ...
