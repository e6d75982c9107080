"""One decoder layer that can be trained: norm, grouped attention with rope, norm, SwiGLU.

Its parameters bear the names of a layer's tensors in a checkpoint. It writes no cache of its own: whoever reads chunk
by chunk gives it the keys and values before.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.config import DecoderConfig

Rotation = tuple[Tensor, Tensor]  # cos, sin: [n, D / 2] or [batch, n, D / 2]


class RMSNorm(nn.Module):
    """In fp32, whatever comes."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class Kept:
    """Keys and values of the positions before, [batch, kv heads, positions, D]; grows with every pass."""

    def __init__(self, most: int | None) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._most = most  # what a window will never see again is let go

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            k, v = torch.cat((self.keys, k), dim=2), torch.cat((self.values, v), dim=2)
        first = 0 if self._most is None else max(0, k.shape[2] - self._most)
        self.keys, self.values = k[:, :, first:], v[:, :, first:]
        return k, v


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.dim, hidden = config.head_dim, config.hidden_size
        queries, keys = config.num_heads * self.dim, config.num_kv_heads * self.dim
        self.q_proj = nn.Linear(hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, hidden, bias=config.o_bias)
        self.group = config.num_heads // config.num_kv_heads
        if config.qk_norm:
            self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.has_norms = config.qk_norm

    def forward(self, x: Tensor, at: Rotation, seen: Tensor, kept: Kept | None = None) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (each(x).view(batch, n, -1, self.dim) for each in (self.q_proj, self.k_proj, self.v_proj))
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = _rotate(q, at).transpose(1, 2), _rotate(k, at).transpose(1, 2), v.transpose(1, 2)
        if kept is not None:
            k, v = kept.extend(k, v)
        if self.group > 1:
            k, v = k.repeat_interleave(self.group, dim=1), v.repeat_interleave(self.group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)  # [batch, heads, n, D]
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, n, -1))
        return out


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, at: Rotation, seen: Tensor, kept: Kept | None = None) -> Tensor:
        """x [batch, n, hidden]; seen: which of the keys each row attends to, [.., n, keys]."""
        x = x + self.self_attn(self.input_layernorm(x), at, seen, kept)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


def sees(mine: Tensor, theirs: Tensor, window: int | None) -> Tensor:
    """Which positions `theirs` [k] a row at each of `mine` [n] attends to, bool [n, k]."""
    back = mine[:, None] - theirs[None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


def _rotate(x: Tensor, at: Rotation) -> Tensor:
    """x [batch, n, heads, D]."""
    cos, sin = (each.unsqueeze(-2) for each in at)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
