"""A thinking model in its training form: gold thoughts are known, so all chunks are computed at once.

C turns every gold thought into its state in one batch, the backbone runs once with the states added, T reads all
chunks at once. States enter through the embeddings of gold tokens only: nothing is propagated back through time.
What it computes is `holdfast.thinking.reference`; parameters bear the checkpoint's names.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.arithmetic.rope import rope_tables
from holdfast.models.config import DecoderConfig
from holdfast.models.rope_scaling import rope_frequencies
from holdfast.thinking.config import ThinkingConfig
from holdfast.train.layer import DecoderLayer, RMSNorm, Rotation, sees

_STATE_SCALE = (
    0.25  # of a fresh model's states: about what the residual stream measures behind the first layer
)


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

    def forward(self, token_ids: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """token_ids [B, L], states [B, L, hidden] -> (rows the head takes, H), both [B, L, hidden]."""
        length = token_ids.shape[1]
        places = torch.arange(length, device=token_ids.device)
        at = self.rotation(places)
        x = h = self.embed(token_ids)
        for index in range(self.config.num_layers):
            seen = sees(places, places, self.config.layer_windows[index])
            x = self.model.layer(index)(x, at, seen)
            if self.thinking is not None:
                if index + 1 == self.thinking.l_in and states is not None:
                    x = x + states
                if index + 1 == self.thinking.l_out:
                    h = x
        return self.model.norm(x), h

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
        y: Tensor = self.c.layer(x, self.rotation(places), seen[:, None])[:, m:]
        return cast(Tensor, self.c.norm(y)) * self.c.scale

    def spread_states(self, thoughts: Tensor, length: int) -> Tensor | None:
        """Gold thoughts [B, K, m] -> what is added to each of `length` positions, [B, length, hidden]; None: nothing."""
        batch, num_chunks, _ = thoughts.shape
        is_told = thoughts[:, :, 0] >= 0  # [B, K]
        if not bool(is_told.any()):
            return None
        made = self.states(thoughts[is_told])  # [n, c, hidden]
        c = made.shape[1]
        at = is_told.reshape(-1).nonzero()[:, 0]  # [n]
        zeros = made.new_zeros(batch * num_chunks, c, made.shape[2])
        rows = zeros.index_copy(0, at, made).view(batch, num_chunks * c, -1)
        behind = F.pad(rows, (0, 0, c, 0))  # chunk k's thought is chunk k + 1's state
        return F.pad(behind, (0, 0, 0, max(0, length - behind.shape[1])))[:, :length]

    def thought_rows(self, h: Tensor, thoughts: Tensor) -> Tensor:
        """H [n, c, hidden], gold thoughts [n, m] -> T's normed rows for its tokens and its end, [n, m + 1, hidden]."""
        assert self.thinking is not None
        ids = F.pad(thoughts.clamp(min=0), (1, 0), value=self.thinking.start_id)  # [n, m + 1]
        x = torch.cat((h, self.embed(ids).to(h.dtype)), dim=1)
        places = torch.arange(x.shape[1], device=x.device)
        y: Tensor = self.t.layer(x, self.rotation(places), sees(places, places, None))
        return cast(Tensor, self.t.norm(y[:, h.shape[1] :]))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights named here; what is not named stays as it is."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)


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
