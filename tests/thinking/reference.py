"""The definition of a thinking model: slow and plain, one token at a time.

    chunk k's tokens ── embed ── layers 0 .. l_in-1 ──(+ S_k)── layers l_in .. l_out-1 ──┬── other layers ── norm ── head
                                                                                        H_k
    T:  [H_k (c rows), emb(start), emb(z_1), emb(z_2) ..] ── layer ── norm ── the backbone's head ── z_1 z_2 .. end
    C:  [emb(z_1) .. emb(z_n), c queries]                 ── layer ── last c rows ── norm ── * scale ── S_k+1

Training and serving are tested against this file. What it fixes:

- S_0 is zero. After a trivial thought (n = 0: C does not run) and after a chunk that is not thought
  about, S is zero too; with `carry` it stays as it was, unless `reset_ids` end in the chunk, in the prompt.
- A thought is written when its chunk is complete. Its state is for the next chunk: row j is added
  at position (k+1) c + j.
- With `settle` the chunk with the last token of the prompt is closed before that token, at position s, unless s is
  where it begins, or less than c tokens are before it. T then reads the c tokens before s. Row j of the state is added
  at all positions k c + j from s on, and in the next chunk. When the chunk is complete, nothing happens.
- T's and C's layers have the backbone's shape, rope and scale. They attend causally over their own
  short sequence, positions 0, 1, 2 ..; a sliding window of the backbone does not apply.
- T reads the residual stream without a norm; embeddings are the backbone's, unscaled.
- Thought tokens are greedy, ties go to the lowest id. After max_thought tokens the thought ends
  without an end token. C does not read the end token.

Weights are a dict under the checkpoint's names (decoder and thinking.safetensors), in one dtype.
Everything here is differentiable, so that training's gradients can be compared with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.arrays import rounded
from holdfast.numerics.rope import rope_tables
from holdfast.thinking.config import ThinkingConfig, read_thinking
from holdfast.thinking.log import find_resets
from holdfast.thinking.weights import read_thinking_weights


@dataclass
class ReferenceState:
    """The state after reading some tokens. Lists have one entry per token or per complete chunk."""

    keys: list[Tensor]  # per layer: [positions, kv heads, D]
    values: list[Tensor]
    prompt_ids: list[int] = field(default_factory=list)
    state: Tensor | None = None  # of the current chunk, [c, hidden]; None: zero
    hidden: list[Tensor] = field(default_factory=list)  # H of the last c tokens
    logits: list[Tensor] = field(default_factory=list)  # per token: [vocab]
    thoughts: list[tuple[int, ...]] = field(default_factory=list)  # per closed chunk
    thought_logits: list[Tensor | None] = field(
        default_factory=list
    )  # per closed chunk: [tokens + end, vocab]


class Reference:
    """A thinking model, or a plain one if there is no thinking configuration."""

    def __init__(
        self, config: DecoderConfig, thinking: ThinkingConfig | None, weights: Mapping[str, Tensor]
    ) -> None:
        self.config = config
        self.thinking = None if thinking is None else thinking.fits(config)
        self._weights = weights
        self._head = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        least = 0 if thinking is None else 2 * thinking.chunk + thinking.max_thought + 1
        max_len = max(config.max_position_embeddings, least)
        device = self._head.device
        self._cos, self._sin = (
            torch.from_numpy(each).to(device) for each in rope_tables(*rope_frequencies(config), max_len)
        )

    def start(self) -> ReferenceState:
        empty = self._head.new_zeros(0, self.config.num_kv_heads, self.config.head_dim)
        return ReferenceState([empty] * self.config.num_layers, [empty] * self.config.num_layers)

    def read(
        self,
        reading: ReferenceState,
        ids: Sequence[int],
        gold: Sequence[Sequence[int]] | None = None,
        *,
        prompt: bool = True,
    ) -> ReferenceState:
        """Read more tokens; those of a prompt end it. `gold`, one thought per chunk, replaces T's own thoughts."""
        settled = self._settled(len(reading.logits) + len(ids)) if prompt else None
        for token_id in ids:
            if len(reading.logits) == settled:
                self._close(reading, prompt, gold)
            self._read_token(reading, token_id)
            if prompt:
                reading.prompt_ids.append(token_id)
            if (
                self.thinking is not None
                and len(reading.logits) == (len(reading.thoughts) + 1) * self.thinking.chunk
            ):
                self._close(reading, prompt, gold)
        return reading

    def _settled(self, prompt_len: int) -> int | None:
        """The position before which the last chunk of a prompt is closed, if that is not its end."""
        last = prompt_len - 1
        if self.thinking is None or not self.thinking.settle:
            return None
        return last if last > self.thinking.chunk and last % self.thinking.chunk else None

    def _close(self, reading: ReferenceState, prompt: bool, gold: Sequence[Sequence[int]] | None) -> None:
        assert self.thinking is not None
        forced = None if gold is None else tuple(gold[len(reading.thoughts)])
        self._close_chunk(reading, self.thinking, prompt or self.thinking.while_answering, forced)

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> tuple[list[int], ReferenceState]:
        """The greedy answer including its stop token, and the final state."""
        reading = self.read(self.start(), prompt_ids)
        answer: list[int] = []
        while len(answer) < max_tokens:
            answer.append(int(reading.logits[-1].argmax()))
            if answer[-1] in self.config.eos_token_ids:
                break
            self.read(reading, answer[-1:], prompt=False)
        return answer, reading

    def _read_token(self, reading: ReferenceState, token_id: int) -> None:
        position = len(reading.logits)
        x = self._embed([token_id])  # [1, hidden]
        for index in range(self.config.num_layers):
            window = self.config.layer_windows[index]
            kept = reading.keys[index], reading.values[index]
            x, reading.keys[index], reading.values[index] = self._layer(
                f"model.layers.{index}.", x, position, *kept, window
            )
            if self.thinking is not None:
                if index + 1 == self.thinking.l_in and reading.state is not None:
                    x = x + reading.state[position % self.thinking.chunk]
                if index + 1 == self.thinking.l_out:
                    reading.hidden = [*reading.hidden, x][-self.thinking.chunk :]
        reading.logits.append(self._logits(x, "model.norm.weight")[0])

    def _close_chunk(
        self, reading: ReferenceState, thinking: ThinkingConfig, thinks: bool, gold: tuple[int, ...] | None
    ) -> None:
        hidden = torch.cat(reading.hidden)  # [c, hidden]
        thought, logits = self.think(hidden, thinking, gold) if thinks else ((), None)
        reading.thoughts.append(thought)
        reading.thought_logits.append(logits)
        if thought:
            reading.state = self.compress(thought)
        elif not thinking.carry or self._is_reset(reading, thinking):
            reading.state = None

    def _is_reset(self, reading: ReferenceState, thinking: ThinkingConfig) -> bool:
        """Whether a message begins in the chunk that is closed here."""
        first = (len(reading.thoughts) - 1) * thinking.chunk
        return bool(find_resets(reading.prompt_ids, thinking.reset_ids, first))

    def think(
        self, hidden: Tensor, thinking: ThinkingConfig, gold: tuple[int, ...] | None = None
    ) -> tuple[tuple[int, ...], Tensor]:
        """Run T on H [c, hidden]. Returns the thought without its end token, and the logits of every token and the end."""
        x = torch.cat((hidden, self._embed([thinking.start_id])))  # [c + 1, hidden]
        thought: list[int] = []
        logits: list[Tensor] = []
        while True:
            y = self._whole_layer("t.layer.", x)
            logits.append(self._logits(y[-1:], "t.norm.weight")[0])
            if gold is not None:
                token_id = gold[len(thought)] if len(thought) < len(gold) else thinking.end_id
            else:
                token_id = int(logits[-1].argmax())
            if token_id == thinking.end_id:
                break
            thought.append(token_id)
            if len(thought) == thinking.max_thought and gold is None:
                break
            x = torch.cat((x, self._embed([token_id])))
        return tuple(thought), torch.stack(logits)

    def compress(self, thought: Sequence[int]) -> Tensor:
        """Run C on a non-trivial thought. Returns the next chunk's state, [c, hidden]."""
        queries = self._weights["c.queries"]  # [c, hidden]
        y = self._whole_layer("c.layer.", torch.cat((self._embed(thought), queries)))[-len(queries) :]
        return self._norm(y, "c.norm.weight") * self._weights["c.scale"]

    def _embed(self, ids: Sequence[int]) -> Tensor:
        return self._weights["model.embed_tokens.weight"][torch.tensor(ids, device=self._head.device)]

    def _logits(self, x: Tensor, norm: str) -> Tensor:
        return F.linear(self._norm(x, norm), self._head)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return _rms_norm(x, self._weights[name], self.config.rms_norm_eps)

    def _whole_layer(self, prefix: str, x: Tensor) -> Tensor:
        """Run a layer over a complete sequence."""
        empty = self.start().keys[0]
        return self._layer(prefix, x, 0, empty, empty, None)[0]

    def _layer(
        self, prefix: str, x: Tensor, position: int, keys: Tensor, values: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run a layer on tokens [n, hidden] from `position` on. Returns hidden states, all keys, all values."""
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        n, at = len(x), slice(position, position + len(x))
        normed = self._norm(x, f"{prefix}input_layernorm.weight")
        q = self._linear(normed, f"{prefix}self_attn.q_proj").view(n, heads, dim)
        k = self._linear(normed, f"{prefix}self_attn.k_proj").view(n, kv_heads, dim)
        v = self._linear(normed, f"{prefix}self_attn.v_proj").view(n, kv_heads, dim)
        if self.config.qk_norm:
            q = self._norm(q, f"{prefix}self_attn.q_norm.weight")
            k = self._norm(k, f"{prefix}self_attn.k_norm.weight")
        q, k = (_rotate(each, self._cos[at, None], self._sin[at, None]) for each in (q, k))
        keys, values = torch.cat((keys, k)), torch.cat((values, v))
        attended = _attend(q, keys, values, position, window).reshape(n, heads * dim)
        x = x + self._linear(attended, f"{prefix}self_attn.o_proj")
        normed = self._norm(x, f"{prefix}post_attention_layernorm.weight")
        gate = F.silu(self._linear(normed, f"{prefix}mlp.gate_proj"))
        inner = gate * self._linear(normed, f"{prefix}mlp.up_proj")
        return x + self._linear(inner, f"{prefix}mlp.down_proj"), keys, values

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))


def open_reference(folder: Path) -> Reference:
    """Open the model in a folder, thinking or plain, in fp32."""
    checkpoint = open_checkpoint(folder)
    weights = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    thinking = read_thinking(folder, checkpoint.config)
    if thinking is not None:
        held = read_thinking_weights(folder, thinking, checkpoint.config)
        weights |= {name: rounded(each, torch.float32) for name, each in held.items()}
    return Reference(checkpoint.config, thinking, weights)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _attend(q: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None) -> Tensor:
    """q [n, heads, D] from `position` on, keys and values [positions, kv heads, D] -> [n, heads, D]."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,phd->hnp", q, keys) * q.shape[-1] ** -0.5
    mine = torch.arange(position, position + len(q), device=q.device)[:, None]
    theirs = torch.arange(len(keys), device=q.device)[None, :]
    is_seen = theirs <= mine if window is None else (theirs <= mine) & (theirs > mine - window)
    weights = scores.masked_fill(~is_seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("hnp,phd->nhd", weights, values)
