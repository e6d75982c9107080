"""One decoder layer that can be trained: norm, grouped attention with rope, norm, SwiGLU.

Its parameters bear the names of a layer's tensors in a checkpoint. It writes no cache of its own: whoever reads chunk
by chunk gives it the keys and values before. What is done row by row (`before`, `behind`) is apart from attention, which
is not: rows are the same to it in any arrangement, so one compiled form of it serves all.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.config import DecoderConfig

Rotation = tuple[Tensor, Tensor]  # cos, sin: [n, D / 2] or [batch, n, D / 2]
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values


class RMSNorm(nn.Module):
    """In fp32, whatever comes."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class Kept:
    """Keys and values of the positions before, [batch, positions, kv heads, D]; grows with every pass."""

    def __init__(self, most: int | None) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._most = most  # what a window will never see again is let go

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            k, v = torch.cat((self.keys, k), dim=1), torch.cat((self.values, v), dim=1)
        first = 0 if self._most is None else max(0, k.shape[1] - self._most)
        self.keys, self.values = k[:, first:], v[:, first:]
        return k, v

    def narrow(self, num_texts: int) -> None:
        """Forget all texts but the first so many."""
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

    def before(self, x: Tensor, at: Rotation) -> Heads:
        """What is done row by row before attention: x [.., hidden] -> queries, keys, values [.., heads, D]."""
        return self.self_attn.project(self.input_layernorm(x), at)

    def behind(self, x: Tensor, attended: Tensor) -> Tensor:
        """What is done row by row behind attention: attended [.., heads, D] -> [.., hidden]."""
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y

    def forward(self, x: Tensor, at: Rotation, seen: Tensor, kept: Kept | None = None) -> Tensor:
        """x [batch, n, hidden]; seen: which of the keys each row attends to, [.., n, keys]."""
        q, k, v = self.before(x, at)
        if kept is not None:
            k, v = kept.extend(k, v)
        return self.behind(x, attend(q, k, v, fold(seen, q.shape[2] // k.shape[2])))


def sees(mine: Tensor, theirs: Tensor, window: int | None) -> Tensor:
    """Which positions `theirs` [k] a row at each of `mine` [n] attends to, bool [n, k]."""
    back = mine[:, None] - theirs[None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


def _rotate(x: Tensor, at: Rotation) -> Tensor:
    """x [batch, n, heads, D]."""
    cos, sin = (each.unsqueeze(-2) for each in at)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def fold(seen: Tensor, group: int) -> Tensor:
    """A mask [.., n, keys] for `attend`: a row for each query head that shares a key head, [.., 1, n * group, keys]."""
    each = seen.repeat_interleave(group, dim=-2)
    return each.view(-1, 1, *each.shape[-2:])  # always four dimensions: fewer would lose the fast kernels


def attend(q: Tensor, k: Tensor, v: Tensor, folded: Tensor) -> Tensor:
    """q [batch, n, heads, D], keys and values [batch, keys, kv heads, D] -> [batch, n, heads, D].

    Query heads that share a key head are rows of it, so that no key is copied."""
    batch, n, heads, dim = q.shape
    kv_heads = k.shape[2]
    rows = (
        q.view(batch, n, kv_heads, -1, dim).transpose(1, 2).reshape(batch, kv_heads, -1, dim)
    )  # [.., n * group, D]
    y = F.scaled_dot_product_attention(rows, k.transpose(1, 2), v.transpose(1, 2), attn_mask=folded)
    return y.view(batch, kv_heads, n, -1, dim).transpose(1, 2).reshape(batch, n, heads, dim)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every row of [batch, n, heads, D] sees all up to itself."""
    group = q.shape[2] // k.shape[2]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def see_locally(texts: Tensor, window: int, block: int) -> Tensor:
    """Which of its own block and the one before each row sees, bool [blocks, block, 2 * block]. texts [R]: whose a row is."""
    mine = texts.view(-1, block)
    before = F.pad(mine[:-1], (0, 0, 1, 0), value=-2)  # before the first is nobody's
    theirs = torch.cat((before, mine), dim=1)
    places = torch.arange(2 * block, device=texts.device)
    return sees(places[block:], places, window) & (mine[:, :, None] == theirs[:, None, :])


def attend_locally(q: Tensor, k: Tensor, v: Tensor, folded: Tensor, block: int) -> Tensor:
    """Rows [R, heads, D] in blocks, each with the keys of its own block and the one before."""
    k, v = (_with_block_before(each, block) for each in (k, v))
    return attend(q.view(-1, block, *q.shape[1:]), k, v, folded).flatten(0, 1)


def _with_block_before(x: Tensor, block: int) -> Tensor:
    """[R, heads, D] -> [blocks, 2 * block, heads, D]."""
    blocks = x.view(-1, block, *x.shape[1:])
    return torch.cat((F.pad(blocks[:-1], (0, 0, 0, 0, 0, 0, 1, 0)), blocks), dim=1)
