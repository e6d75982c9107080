"""A trainable decoder layer: norm, grouped-query attention with rope, norm, SwiGLU.

Its parameters have the names of a layer's tensors in a checkpoint. It has no cache of its own: the
caller passes earlier keys and values. The row-wise parts (`before_attention`, `after_attention`)
are separate from attention. They do not depend on the arrangement of the rows, so one compiled
version serves all layers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.config import DecoderConfig

Rotation = tuple[Tensor, Tensor]  # cos, sin: [n, D / 2] or [batch, n, D / 2]
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class LayerCache:
    """Keys and values of earlier positions, [batch, positions, kv heads, D]; grows with every pass."""

    def __init__(self, max_len: int | None) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._max_len = max_len  # positions outside a window are dropped

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            k, v = torch.cat((self.keys, k), dim=1), torch.cat((self.values, v), dim=1)
        first = 0 if self._max_len is None else max(0, k.shape[1] - self._max_len)
        self.keys, self.values = k[:, first:], v[:, first:]
        return k, v

    def narrow(self, num_texts: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:num_texts], self.values[:num_texts]


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.dim, hidden = config.head_dim, config.hidden_size
        queries, keys = config.num_heads * self.dim, config.num_kv_heads * self.dim
        self.q_proj = nn.Linear(hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, hidden, bias=config.o_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.has_norms = config.qk_norm

    def project(self, x: Tensor, at: Rotation) -> Heads:
        """x [.., hidden] -> queries [.., heads, D], keys and values [.., kv heads, D], rotated."""
        q, k, v = (
            each(x).view(*x.shape[:-1], -1, self.dim) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        return _rotate(q, at), _rotate(k, at), v


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

    def before_attention(self, x: Tensor, at: Rotation) -> Heads:
        """Compute the row-wise part before attention: queries, keys, values [.., heads, D]."""
        return self.self_attn.project(self.input_layernorm(x), at)

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the row-wise part after attention: attended [.., heads, D] -> [.., hidden]."""
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y

    def forward(self, x: Tensor, at: Rotation, mask: Tensor, cache: LayerCache | None = None) -> Tensor:
        """x [batch, n, hidden]; mask: the keys each row attends to, [.., n, keys]."""
        q, k, v = self.before_attention(x, at)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.after_attention(x, attend(q, k, v, fold_groups(mask, q.shape[2] // k.shape[2])))


def visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Return whether a query at each position [n] attends to the key at each position [k]: bool [n, k]."""
    back = queries[:, None] - keys[None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


def _rotate(x: Tensor, at: Rotation) -> Tensor:
    cos, sin = (each.unsqueeze(-2) for each in at)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def fold_groups(mask: Tensor, group: int) -> Tensor:
    """Repeat a mask [.., n, keys] for the query heads of a key head: [.., 1, n * group, keys]."""
    each = mask.repeat_interleave(group, dim=-2)
    return each.view(-1, 1, *each.shape[-2:])  # always four dimensions: with fewer, torch uses no fast kernel


def attend(q: Tensor, k: Tensor, v: Tensor, folded_mask: Tensor) -> Tensor:
    """Attend [batch, n, heads, D]. Query heads that share a key head become its rows: no key is copied."""
    batch, n, heads, dim = q.shape
    kv_heads = k.shape[2]
    rows = (
        q.view(batch, n, kv_heads, -1, dim).transpose(1, 2).reshape(batch, kv_heads, -1, dim)
    )  # [.., n * group, D]
    y = F.scaled_dot_product_attention(rows, k.transpose(1, 2), v.transpose(1, 2), attn_mask=folded_mask)
    return y.view(batch, kv_heads, n, -1, dim).transpose(1, 2).reshape(batch, n, heads, dim)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[2] // k.shape[2]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def visible_locally(texts: Tensor, window: int, block: int) -> Tensor:
    """Return the keys of its block and the one before that each row sees: bool [blocks, block, 2 * block]."""
    mine = texts.view(-1, block)
    before = F.pad(mine[:-1], (0, 0, 1, 0), value=-2)  # no block before the first
    theirs = torch.cat((before, mine), dim=1)
    places = torch.arange(2 * block, device=texts.device)
    return visible(places[block:], places, window) & (mine[:, :, None] == theirs[:, None, :])


def attend_locally(q: Tensor, k: Tensor, v: Tensor, folded_mask: Tensor, block: int) -> Tensor:
    """Attend over rows [R, heads, D] in blocks, each with the keys of its block and the one before."""
    k, v = (_with_block_before(each, block) for each in (k, v))
    return attend(q.view(-1, block, *q.shape[1:]), k, v, folded_mask).flatten(0, 1)


def _with_block_before(x: Tensor, block: int) -> Tensor:
    """[R, heads, D] -> [blocks, 2 * block, heads, D]."""
    blocks = x.view(-1, block, *x.shape[1:])
    return torch.cat((F.pad(blocks[:-1], (0, 0, 0, 0, 0, 0, 1, 0)), blocks), dim=1)
