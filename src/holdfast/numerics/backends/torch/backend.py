"""The torch backend: torch operations only, for machines without a C compiler.

Here the batch does change bits: torch's GEMM chooses its order of summation by the number of rows.
`canonical=True` multiplies in slabs of exactly `recipe.rows` rows, the last one padded with zeros,
so the GEMM always has the same shape. Attention has one form for fast and canonical passes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.numerics.backends.cpu import CpuBackend
from holdfast.numerics.backends.torch import sampling
from holdfast.numerics.backends.torch.attention import KV_BLOCK, QUERY_TILE, attention
from holdfast.numerics.backends.torch.recurrence import TorchRecurrence
from holdfast.numerics.batch_sizes import cpu_batch_sizes
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.ops import Capabilities, Linear
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.versions import VERSIONS

_REFERENCE_ROWS = 16
_ALIGNMENT = 64  # of torch's own allocations, in bytes


def has_native_gemm(dtype: torch.dtype) -> bool:
    """Return whether this CPU has GEMM instructions for the dtype. If not, weights are kept in fp32."""
    if dtype == torch.float32:
        return True
    can = torch.cpu.get_capabilities()
    if dtype == torch.bfloat16:
        return bool(can.get("bf16") or can.get("avx512_bf16") or can.get("amx_bf16"))
    return bool(can.get("avx512_fp16") or can.get("amx_fp16"))


class TorchBackend(TorchRecurrence, CpuBackend):
    """Implements `Backend` with torch operations."""

    can = Capabilities(cpu_batch_sizes, layer_sizes=(1, 2, _REFERENCE_ROWS, 2 * _REFERENCE_ROWS))
    build = ""
    device = torch.device("cpu")
    attention = staticmethod(attention)
    exp = staticmethod(torch.exp)
    sample = staticmethod(sampling.sample)
    logsumexp = staticmethod(sampling.logsumexp)
    topk = staticmethod(sampling.topk)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._native = has_native_gemm(dtype)
        self.recipe = Recipe(
            path="torch",
            rows=_REFERENCE_ROWS,
            k_slices=1,
            kv_block=KV_BLOCK,
            query_tile=QUERY_TILE,
            dtype=str(dtype).removeprefix("torch."),
            variant="torch" if self._native else "torch-fp32",
            version=VERSIONS["kernels/torch"],
        )

    def in_fp32(self) -> "TorchBackend":
        return self if self.dtype is torch.float32 else TorchBackend(torch.float32)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        out_features, in_features = weight.shape
        data = weight.to(self.dtype).to(self.dtype if self._native else torch.float32).contiguous()
        if data.data_ptr() % _ALIGNMENT:  # inside a mapped file; a library may choose its kernel by it
            data = data.clone()
        bias32 = None if bias is None else bias.to(torch.float32)
        return Linear(data, bias32, in_features, out_features, self.dtype)

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm(x, w, canonical).to(self.dtype)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm(x, w, canonical).to(torch.float32)

    def _gemm(self, x: Tensor, w: Linear, canonical: bool) -> Tensor:
        """x [rows, K] -> [rows, N]; fp32 if the weights are fp32 or a bias is added."""
        x = x.to(w.data.dtype)
        if canonical:
            slabs = [self._slab(slab, w) for slab in torch.split(x, self.recipe.rows)]
            y = torch.cat(slabs) if slabs else x.new_empty((0, w.out_features))
        else:
            y = F.linear(x, w.data)
        return y if w.bias is None else y.to(torch.float32) + w.bias

    def _slab(self, x: Tensor, w: Linear) -> Tensor:
        """At most `recipe.rows` rows, padded to exactly that many."""
        rows = x.shape[0]
        return F.linear(F.pad(x, (0, 0, 0, self.recipe.rows - rows)).contiguous(), w.data)[:rows]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, centered: bool = False) -> Tensor:
        x32 = x.to(torch.float32)
        if centered:
            x32 = x32 - x32.mean(-1, keepdim=True)
        unit = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
        if weight.dtype is not self.dtype:
            return (unit * weight.to(torch.float32)).to(self.dtype)
        return unit.to(self.dtype) * weight

    def add_rms_norm(
        self,
        residual: Tensor,
        delta: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        delta_norm: Tensor | None = None,
        delta_scale: float = 1.0,
        centered: bool = False,
    ) -> Tensor:
        if delta_norm is not None:
            delta = self.rms_norm(delta, delta_norm, eps, centered=centered)
        if delta_scale != 1.0:
            delta = (delta.to(torch.float32) * delta_scale).to(self.dtype)
        residual.add_(delta)
        return residual.clone() if weight is None else self.rms_norm(residual, weight, eps, centered=centered)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        for x in (q, k):  # [rows, heads, D]
            first, second = x.to(torch.float32).chunk(2, dim=-1)
            c, s = cos[:, None, :], sin[:, None, :]
            x.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=-1))

    def store_kv(self, k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
        page_size = layer.keys.shape[3]
        real = slots >= 0
        slots, k, v = slots[real], k[real], v[real]
        page, offset = slots // page_size, slots % page_size
        layer.keys[page, :, :, offset] = k
        layer.values[page, :, offset] = v

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        x32 = gate.to(torch.float32)
        return (x32 / (1.0 + torch.exp(-x32))).to(self.dtype) * up

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """(1 + tanh(u)) / 2 is sigmoid(2 u)."""
        gate, up = gate_up.chunk(2, dim=-1)
        x32 = gate.to(torch.float32)
        doubled = x32 * (x32 * x32 * 0.0713548163 + 1.5957691216)
        return (x32 / (1.0 + torch.exp(-doubled))).to(self.dtype) * up

    def swiglu_mul(self, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        gate, up = (part.to(torch.float32) for part in gate_up.chunk(2, dim=-1))
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (gate / (1.0 + torch.exp(gate * -alpha)) * (up + 1.0)).to(self.dtype)

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        logits.div_(cap).tanh_().mul_(cap)

    def sample_greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        ids = sampling.argmax(logits)
        return ids, logits.gather(1, ids.clamp(min=0)[:, None])[:, 0] - self.logsumexp(logits)
