"""A thinking model in its training form: gold thoughts are known, so all chunks are computed at once.

C turns every gold thought into its state, the backbone runs once with the states added, T reads all chunks at once.
Texts lie one behind the other (`packed.py`). States enter through the embeddings of gold tokens only: nothing is
propagated back through time. What it computes is `holdfast.thinking.reference`; parameters bear the checkpoint's names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.config import DecoderConfig
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.rope import rope_tables
from holdfast.thinking.config import ThinkingConfig
from holdfast.training.layer import (
    DecoderLayer,
    Heads,
    RMSNorm,
    Rotation,
    attend,
    attend_causally,
    attend_locally,
    fold,
    see_locally,
    sees,
)
from holdfast.training.packed import Packed, Reader, Whole, block_of, is_local

_STATE_SCALE = (
    0.25  # of a fresh model's states: about what the residual stream measures behind the first layer
)


@dataclass(frozen=True)
class Rowwise:
    """The two halves of every layer, as they are or compiled."""

    before: Callable[[DecoderLayer, Tensor, Rotation], Heads]
    behind: Callable[[DecoderLayer, Tensor, Tensor], Tensor]


class Backbone(nn.Module):
    """`model.` of the checkpoint: embeddings, layers, the last norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def layer(self, index: int) -> DecoderLayer:
        return cast(DecoderLayer, self.layers[index])


class ThinkingBlock(nn.Module):
    """`t.` of thinking.safetensors."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.layer = DecoderLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class CompressionBlock(nn.Module):
    """`c.` of thinking.safetensors."""

    def __init__(self, config: DecoderConfig, chunk: int) -> None:
        super().__init__()
        self.layer = DecoderLayer(config)
        self.queries = nn.Parameter(torch.empty(chunk, config.hidden_size))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.scale = nn.Parameter(torch.full((config.hidden_size,), _STATE_SCALE))


class ThinkingModel(nn.Module):
    """A decoder that can be trained; with a thinking configuration, one that thinks."""

    def __init__(self, config: DecoderConfig, thinking: ThinkingConfig | None, max_len: int) -> None:
        super().__init__()
        self.config = config
        self.thinking = None if thinking is None else thinking.fits(config)
        self.model = Backbone(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if thinking is not None:
            self.t = ThinkingBlock(config)
            self.c = CompressionBlock(config, thinking.chunk)
            max_len = max(max_len, 2 * thinking.chunk + thinking.max_thought + 1)
        cos, sin = rope_tables(*rope_frequencies(config), max_len)  # fp32 [max_len, D / 2]
        self.rowwise = Rowwise(DecoderLayer.before, DecoderLayer.behind)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def head(self) -> Tensor:
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def rotation(self, positions: Tensor) -> Rotation:
        """Positions [n] or [batch, n]."""
        return cast(Tensor, self.cos)[positions], cast(Tensor, self.sin)[positions]

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.model.embed_tokens.weight)

    def logits(self, x: Tensor) -> Tensor:
        """Of rows behind the last norm, or behind T's."""
        return F.linear(x, self.head)

    @property
    def reader(self) -> Reader:
        """How texts are packed for this model."""
        thinking = self.thinking
        windows = self.config.layer_windows
        if thinking is None:
            return Reader(windows, None)
        return Reader(windows, thinking.end_id, thinking.while_answering)

    def forward(self, texts: Packed[Tensor]) -> tuple[Tensor, Tensor]:
        """Packed texts with the states of their gold thoughts -> (rows the head takes, H), both [R, hidden]."""
        at = self.rotation(texts.places)
        x = h = self.embed(texts.token_ids)  # [R, hidden]
        looks = self._looks(texts)
        for index, window in enumerate(self.config.layer_windows):
            layer = self.model.layer(index)
            x = self.rowwise.behind(layer, x, looks[window](*self.rowwise.before(layer, x, at)))
            if self.thinking is not None:
                if index + 1 == self.thinking.l_in and texts.told:
                    x = self._add_states(x, texts)
                if index + 1 == self.thinking.l_out:
                    h = x
        return self.model.norm(x), h

    def _looks(self, texts: Packed[Tensor]) -> dict[int | None, Callable[[Tensor, Tensor, Tensor], Tensor]]:
        """How queries, keys and values [R, heads, D] become what was attended to, for every window there is."""
        return {window: self._look(texts, window) for window in set(self.config.layer_windows)}

    def _look(self, texts: Packed[Tensor], window: int | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        if window is None or not is_local(window, texts.longest):
            assert texts.whole is not None
            return partial(_attend_whole, texts.whole)
        block = block_of(window)
        group = self.config.num_heads // self.config.num_kv_heads
        folded = fold(see_locally(texts.texts, window, block), group)
        return partial(attend_locally, folded=folded, block=block)

    def _add_states(self, x: Tensor, texts: Packed[Tensor]) -> Tensor:
        made = torch.cat([self.states(each.tokens) for each in texts.told])  # [n, c, hidden]
        chunks = torch.cat([each.chunks for each in texts.told])  # [n]
        c = made.shape[1]
        rows = chunks[:, None] * c + torch.arange(c, device=x.device)
        return x.index_add(0, rows.view(-1), made.flatten(0, 1).to(x.dtype))

    def states(self, thoughts: Tensor) -> Tensor:
        """C over gold thoughts [n, m], -1 behind each, none trivial -> [n, c, hidden]."""
        n, m = thoughts.shape
        c = len(self.c.queries)
        lens = (thoughts >= 0).sum(dim=1, keepdim=True)  # [n, 1]
        tokens = self.embed(thoughts.clamp(min=0))  # [n, m, hidden]
        x = torch.cat((tokens, self.c.queries.expand(n, -1, -1).to(tokens.dtype)), dim=1)
        own = torch.arange(m, device=thoughts.device).expand(n, -1)
        asked = lens + torch.arange(c, device=thoughts.device)  # the queries stand right behind the thought
        is_real = torch.cat((own < lens, torch.ones_like(asked, dtype=torch.bool)), dim=1)  # [n, m + c]
        places = torch.cat((own, asked), dim=1)
        # By row, not by position: a token that is none shares its position with a query.
        order = torch.arange(m + c, device=thoughts.device)
        seen = (order[None, :] <= order[:, None]) & is_real[:, None, :]  # [n, rows, rows]
        seen = seen | torch.eye(m + c, dtype=torch.bool, device=thoughts.device)  # no row may see nothing
        y = self._run_block(self.c.layer, x, places, seen, first=m)
        return cast(Tensor, self.c.norm(y)) * self.c.scale

    def thought_rows(self, h: Tensor, thoughts: Tensor) -> Tensor:
        """H [n, c, hidden], gold thoughts [n, m] -> T's normed rows for its tokens and its end, [n, m + 1, hidden]."""
        assert self.thinking is not None
        ids = F.pad(thoughts.clamp(min=0), (1, 0), value=self.thinking.start_id)  # [n, m + 1]
        x = torch.cat((h, self.embed(ids).to(h.dtype)), dim=1)
        places = torch.arange(x.shape[1], device=x.device)
        seen = sees(places, places, None)
        y = self._run_block(self.t.layer, x, places.expand(len(h), -1), seen, first=h.shape[1])
        return cast(Tensor, self.t.norm(y))

    def _run_block(self, layer: DecoderLayer, x: Tensor, places: Tensor, seen: Tensor, first: int) -> Tensor:
        """T's or C's layer over x [n, rows, hidden], as far as rows from `first` on need it."""
        n, num_rows, _ = x.shape
        at = self.rotation(places.reshape(-1))
        q, k, v = (
            each.view(n, num_rows, *each.shape[1:])
            for each in self.rowwise.before(layer, x.flatten(0, 1), at)
        )
        attended = attend(q[:, first:], k, v, fold(seen[..., first:, :], q.shape[2] // k.shape[2]))
        rows = self.rowwise.behind(layer, x[:, first:].flatten(0, 1).contiguous(), attended.flatten(0, 1))
        return rows.view(n, num_rows - first, -1)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights named here; what is not named stays as it is."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)


def _attend_whole(whole: Whole[Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows [R, heads, D], each text's among themselves."""
    texts, longest = whole.rows.shape
    rows = whole.rows.view(-1)
    q, k, v = (each.index_select(0, rows).view(texts, longest, *each.shape[1:]) for each in (q, k, v))
    return attend_causally(q, k, v).flatten(0, 1).index_select(0, whole.back)


def fresh_model(
    config: DecoderConfig, thinking: ThinkingConfig | None, max_len: int, seed: int
) -> ThinkingModel:
    """Random weights, the same for the same seed on every device."""
    model = ThinkingModel(config, thinking, max_len)
    generator = torch.Generator().manual_seed(seed)
    depth = (2 * config.num_layers) ** -0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name or name == "c.scale":
                continue
            if name.endswith("bias"):
                parameter.zero_()
                continue
            spread = parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                spread *= depth
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def start_blocks_from_backbone(model: ThinkingModel) -> None:
    """T begins as the last layer of a trained backbone, C as its first."""
    with torch.no_grad():
        for block, index in ((model.t, -1), (model.c, 0)):
            block.layer.load_state_dict(model.model.layers[index].state_dict())
        model.t.norm.load_state_dict(model.model.norm.state_dict())
