"""A thinking model in its training form: gold thoughts are known, so all chunks run in parallel.

C turns every gold thought into its state, the backbone runs once with the states added, T reads all
chunks at once. Texts are packed (`packed.py`). States depend only on the embeddings of gold tokens:
there is no backpropagation through time. The definition of what it computes is
`tests/thinking/reference.py`; parameters have the checkpoint's names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.config import DecoderConfig
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.arrays import arrays_on
from holdfast.numerics.rope import rope_tables
from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.model.layer import (
    DecoderLayer,
    Heads,
    RMSNorm,
    Rotation,
    attend,
    attend_causally,
    attend_locally,
    fold_groups,
    visible,
    visible_locally,
)
from holdfast_thinking.model.packed import IGNORED, Packed, PackSpec, WholeTexts, block_of, is_local

BLOCKS = ("t.", "c.")  # where the names of T's and C's parameters start
_STATE_SCALE = 0.25  # of a new model's states: about the size of the residual stream after layer 1

_NUM_PROBED = 32
# T's rows are embeddings, not the residual stream its layer is used to: its first logits are wrong. Of
# a quarter of their size, they are nearly uniform.
_FIRST_CONFIDENCE = 0.25


@dataclass(frozen=True)
class Rowwise:
    """The row-wise parts, plain or compiled: of a layer before and after attention, and the loss."""

    before: Callable[[DecoderLayer, Tensor, Rotation], Heads]
    after: Callable[[DecoderLayer, Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]


def summed_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of rows [n, vocab]; ids [n] may be IGNORED."""
    return F.cross_entropy(logits.float(), ids, ignore_index=IGNORED, reduction="sum")


class Backbone(nn.Module):
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
        tables = rope_tables(*rope_frequencies(config), max_len)
        cos, sin = map(torch.from_numpy, tables)  # fp32 [max_len, D / 2]
        self.rowwise = Rowwise(DecoderLayer.before_attention, DecoderLayer.after_attention, summed_loss)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def head(self) -> Tensor:
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def rotation(self, positions: Tensor) -> Rotation:
        return cast(Tensor, self.cos)[positions], cast(Tensor, self.sin)[positions]

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.model.embed_tokens.weight)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.head)

    @property
    def pack_spec(self) -> PackSpec:
        return PackSpec(self.config.layer_windows, self.thinking, len(cast(Tensor, self.cos)))

    def forward(self, texts: Packed[Tensor]) -> tuple[Tensor, Tensor]:
        """Packed texts with their gold thoughts -> (input of the head, H), both [R, hidden]."""
        at = self.rotation(texts.positions)
        x = h = self.embed(texts.token_ids)  # [R, hidden]
        attend_by_window = self._attention(texts)
        for index, window in enumerate(self.config.layer_windows):
            layer = self.model.layer(index)
            x = self.rowwise.after(layer, x, attend_by_window[window](*self.rowwise.before(layer, x, at)))
            if self.thinking is not None:
                if index + 1 == self.thinking.l_in and texts.state_thoughts:
                    x = self._add_states(x, texts)
                if index + 1 == self.thinking.l_out:
                    h = x
        return self.model.norm(x), h

    def _attention(
        self, texts: Packed[Tensor]
    ) -> dict[int | None, Callable[[Tensor, Tensor, Tensor], Tensor]]:
        """For every window: a function from queries, keys, values [R, heads, D] to [R, heads, D]."""
        return {window: self._window_attention(texts, window) for window in set(self.config.layer_windows)}

    def _window_attention(
        self, texts: Packed[Tensor], window: int | None
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        if window is None or not is_local(window, texts.longest):
            assert texts.whole is not None
            return partial(attend_whole, texts.whole, texts.texts >= 0)
        block = block_of(window)
        group = self.config.num_heads // self.config.num_kv_heads
        folded_mask = fold_groups(visible_locally(texts.texts, window, block), group)
        return partial(attend_locally, folded_mask=folded_mask, block=block)

    def _add_states(self, x: Tensor, texts: Packed[Tensor]) -> Tensor:
        """Add each state to its rows. What is not added goes to the spare rows at the end."""
        assert self.thinking is not None
        made = torch.cat([self.states(each.tokens) for each in texts.state_thoughts])  # [n, c, hidden]
        first, last = torch.cat([each.rows for each in texts.state_thoughts]).T[:, :, None]  # [n, 1]
        c = made.shape[1]
        if self.thinking.settle:  # up to 2 c - 1 rows
            made = torch.cat((made, made), dim=1)
        rows = first // c * c + torch.arange(made.shape[1], device=x.device)
        spare = torch.arange(len(x) - c, len(x), device=x.device).repeat(made.shape[1] // c)
        rows = torch.where((rows >= first) & (rows < last), rows, spare)
        return x.index_add(0, rows.view(-1), made.flatten(0, 1).to(x.dtype))

    def states(self, thoughts: Tensor) -> Tensor:
        """C over gold thoughts [n, m], padded with -1, none trivial -> states [n, c, hidden]."""
        n, m = thoughts.shape
        c = len(self.c.queries)
        lens = (thoughts >= 0).sum(dim=1, keepdim=True)  # [n, 1]
        tokens = self.embed(thoughts.clamp(min=0))  # [n, m, hidden]
        x = torch.cat((tokens, self.c.queries.expand(n, -1, -1).to(tokens.dtype)), dim=1)
        own = torch.arange(m, device=thoughts.device).expand(n, -1)
        query_positions = lens + torch.arange(c, device=thoughts.device)  # right after the thought
        is_real = torch.cat(
            (own < lens, torch.ones_like(query_positions, dtype=torch.bool)), dim=1
        )  # [n, m + c]
        positions = torch.cat((own, query_positions), dim=1)
        # The mask is by row, not by position: padding has the position of a query.
        order = torch.arange(m + c, device=thoughts.device)
        mask = (order[None, :] <= order[:, None]) & is_real[:, None, :]  # [n, rows, rows]
        mask = mask | torch.eye(m + c, dtype=torch.bool, device=thoughts.device)  # every row needs a key
        y = self._run_block(self.c.layer, x, positions, mask, first=m)
        return cast(Tensor, self.c.norm(y)) * self.c.scale

    def thought_rows(self, h: Tensor, thoughts: Tensor) -> Tensor:
        """H [n, c, hidden], gold thoughts [n, m] -> T's normed rows for tokens and end [n, m + 1, hidden]."""
        assert self.thinking is not None
        ids = F.pad(thoughts.clamp(min=0), (1, 0), value=self.thinking.start_id)  # [n, m + 1]
        x = torch.cat((h, self.embed(ids).to(h.dtype)), dim=1)
        positions = torch.arange(x.shape[1], device=x.device)
        mask = visible(positions, positions, None)
        y = self._run_block(self.t.layer, x, positions.expand(len(h), -1), mask, first=h.shape[1])
        return cast(Tensor, self.t.norm(y))

    def _run_block(
        self, layer: DecoderLayer, x: Tensor, positions: Tensor, mask: Tensor, first: int
    ) -> Tensor:
        """T's or C's layer over x [n, rows, hidden]; only rows from `first` on are computed."""
        n, num_rows, _ = x.shape
        at = self.rotation(positions.reshape(-1))
        q, k, v = (
            each.view(n, num_rows, *each.shape[1:])
            for each in self.rowwise.before(layer, x.flatten(0, 1), at)
        )
        attended = attend(q[:, first:], k, v, fold_groups(mask[..., first:, :], q.shape[2] // k.shape[2]))
        rows = self.rowwise.after(layer, x[:, first:].flatten(0, 1).contiguous(), attended.flatten(0, 1))
        return rows.view(n, num_rows - first, -1)

    def freeze_backbone(self) -> None:
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(BLOCKS))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these weights; all others stay as they are."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(arrays_on(own[name].device).from_numpy(tensor))


class _TakeRows(torch.autograd.Function):
    """Rows `index` of x, where no two of them that get a gradient are the same row: so the gradient of x
    is made of rows too. `index_select` would add them up one by one.

    inverse: for every row of x, where it was taken to. is_taken: whether it was, and has a gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, is_taken: Tensor) -> Tensor:
        ctx.save_for_backward(inverse, is_taken)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grads
        inverse, is_taken = ctx.saved_tensors
        mine = grad.index_select(0, inverse)
        return torch.where(is_taken.view(-1, *(1,) * (mine.dim() - 1)), mine, 0), None, None, None


def attend_whole(whole: WholeTexts[Tensor], is_text: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over rows [R, heads, D], each text by itself. is_text [R]: not a spare row."""
    texts, longest = whole.rows.shape
    rows = whole.rows.view(-1)
    is_token = torch.arange(longest, device=rows.device) < whole.lens[:, None]  # [B, longest]
    q, k, v = (
        _take_rows(each, rows, whole.back, is_text).view(texts, longest, *each.shape[1:])
        for each in (q, k, v)
    )
    attended = attend_causally(q, k, v).flatten(0, 1)
    return _take_rows(attended, whole.back, rows, is_token.view(-1))


def _take_rows(x: Tensor, index: Tensor, inverse: Tensor, is_taken: Tensor) -> Tensor:
    return cast(Tensor, _TakeRows.apply(x, index, inverse, is_taken))  # type: ignore[no-untyped-call]


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
    """Initialise T with the last layer, C with the first, states with the residual stream's size."""
    with torch.no_grad():
        for block, index in ((model.t, -1), (model.c, 0)):
            block.layer.load_state_dict(model.model.layers[index].state_dict())
        model.t.norm.weight.copy_(_FIRST_CONFIDENCE * model.model.norm.weight)
        model.c.scale.fill_(_residual_size(model))


def _residual_size(model: ThinkingModel) -> float:
    """Return the median size of an element after l_in layers, over some tokens of the vocabulary."""
    assert model.thinking is not None
    ids = torch.linspace(0, model.config.vocab_size - 1, _NUM_PROBED).long()
    positions = torch.arange(_NUM_PROBED)
    x, at = model.embed(ids[None]), model.rotation(positions)
    for index, window in enumerate(model.config.layer_windows[: model.thinking.l_in]):
        x = model.model.layer(index)(x, at, visible(positions, positions, window))
    return float(x.float().square().mean(dim=-1).sqrt().median())
