"""The operations of the Triton path: our kernels around the library's products, on a GPU or under Triton's interpreter.

A product is one of three forms, all else is the same in all of them:

    reference   `canonical=True`: K cut as the recipe says, in slabs of exactly `recipe.rows` rows
    recipe      K cut as the recipe says, at the pass's own number of rows
    plain       the library's own product, whatever it does; for a backend that was opened so

The kernel behind a product adds up what the product left in parts, so a layer is five or six kernels around four products.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from holdfast.numerics.backends.triton import (
    activation,
    attention,
    embed,
    gemm,
    norm,
    partial_sums,
    rope_store,
    sampling,
    small_m_gemm,
)
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerShape, LayerWeights, RopeCosSin
from holdfast.numerics.ops import Linear
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.sampling import SamplingBatch

_REFERENCE_ROWS = 256


@lru_cache(maxsize=1)
def _source_digest() -> str:
    """Of this path's own files: another order of operations is another recipe."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:32]


class TritonBackend:
    """The Triton backend on one device.

    split_k: (N, K) -> `Linear.split_k`. split_n: (N, K) -> `Linear.split_n`, which changes no bit.
    """

    page_size = attention.PAGE_SIZE

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        split_k: Mapping[tuple[int, int], int],
        vendor_gemm: bool,
        split_n: Mapping[tuple[int, int], Mapping[int, int]] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._split_k = dict(split_k)
        self._split_n = dict(split_n or {})
        self._vendor_gemm = vendor_gemm
        self.recipe = Recipe(
            path="triton",
            rows=_REFERENCE_ROWS,
            k_slices=1,
            kv_block=attention.KV_BLOCK,
            query_tile=0,
            dtype=str(dtype).removeprefix("torch."),
            variant="cuda" if device.type == "cuda" else "interpreter",
            source=_source_digest(),
            products=" ".join(f"{n}x{k}/{s}" for (n, k), s in sorted(self._split_k.items())),
        )

    def new_kv_layer(self, num_pages: int, kv_heads: int, head_dim: int) -> KVLayer:
        """Keys lie like values, a position's lanes together; what is shown is a transposed view."""
        shape = (num_pages, kv_heads, self.page_size, head_dim)
        keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return KVLayer(keys.transpose(2, 3), values)

    def tile_tokens(self, span_len: int, group: int) -> int:
        return attention.tile_tokens(span_len, group)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        out_features, in_features = weight.shape
        data = weight.to(self.device, self.dtype).contiguous()
        shape = out_features, in_features
        split_k = self._split_k.get(shape, 0)
        if bias is None:
            split_n = {} if split_k else self._split_n.get(shape, {})
            return Linear(data, None, in_features, out_features, self.dtype, split_k, split_n)
        bias = bias.to(self.device, torch.float32).contiguous()
        return Linear(data, bias, in_features, out_features, self.dtype, max(split_k, 1))

    def _multiply(self, x: Tensor, w: Linear, canonical: bool) -> Tensor:
        """A finished product or parts; the bias is added by who takes them up."""
        if canonical:
            return gemm.multiply(x, w, slab=self.recipe.rows)
        return gemm.multiply(x, w, vendor_gemm=self._vendor_gemm)

    def _gate_up(self, x: Tensor, w: Linear, canonical: bool) -> Tensor:
        """silu(gate) * up of [gate, up] = x w; few rows in one go."""
        unfinished = canonical or self._vendor_gemm or w.split_k or w.bias is not None
        if not unfinished and small_m_gemm.takes(x.shape[0], w.data, 0):
            return small_m_gemm.gate_up_few(x, w.data)
        return activation.silu_mul(self._multiply(x, w, canonical), w.bias, self.dtype)

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return partial_sums.finish(self._multiply(x, w, canonical), w.bias, self.dtype)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        product = gemm.multiply_wide(x, w, slab=self.recipe.rows if canonical else None)
        return partial_sums.finish(product, w.bias, torch.float32)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.add_rms_norm(residual, delta, None, weight, eps)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        rope_store.rope(q, k, cos, sin)

    def store_kv(self, k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
        rope_store.store(k, v, layer, slots)

    def attention(
        self, q: Tensor, layer: KVLayer, rows: ForwardBatch, *, scale: float, window: int | None
    ) -> Tensor:
        return attention.attend(q.contiguous(), layer, rows, scale=scale, window=window)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up, None, self.dtype)

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
        norms = None
        if weights.q_norm is not None and weights.k_norm is not None:
            norms = (weights.q_norm, weights.k_norm)
        qkv = self._multiply(x, weights.qkv, canonical)
        q = rope_store.rope_store(qkv, weights.qkv.bias, norms, shape, at.cos, at.sin, kv, rows.slots)
        attended = attention.attend(q, kv, rows, scale=shape.scale, window=weights.window)
        delta = self._multiply(attended, weights.o, canonical)
        normed = norm.add_rms_norm(residual, delta, weights.o.bias, weights.post_norm, shape.eps)
        inner = self._gate_up(normed, weights.gate_up, canonical)
        delta = self._multiply(inner, weights.down, canonical)
        norm.add_rms_norm(residual, delta, weights.down.bias, weights.next_norm, shape.eps, out=x)

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        return embed.embed(table, token_ids)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return sampling.choose(logits, batch)

    def sample_greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return sampling.greedy(logits)

    def logsumexp(self, logits: Tensor) -> Tensor:
        return sampling.logsumexp(logits)

    def topk(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return sampling.top(logits, k)
