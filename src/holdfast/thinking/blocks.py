"""T and C as the engine runs them: batched over many chunks, on the backbone's backend.

Each chunk is a short sequence of its own, in scratch pages. T reads the chunk's hidden states and
decodes its thought token by token. C reads a thought and returns the next chunk's state. Tokens that
are needed only as context write K and V and skip the rest of the layer.

`reference.py` defines what is computed. In canonical form a chunk's bits do not depend on the other
chunks of the batch. C always runs in canonical form, so its states are cached by thought.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.core.results import ThoughtIds
from holdfast.models.decoder import Decoder
from holdfast.models.weight_loader import WeightLoader
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.attention_tiles import Tiles, list_tiles
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.layer import LayerWeights, write_kv
from holdfast.thinking.config import ThinkingConfig
from holdfast.thinking.weights import ThinkingTensors, read_thinking_weights

MAX_CHUNKS = 128  # chunks in one batch of T or C
_STATE_CACHE_BYTES = 64 << 20

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ThoughtBlock:
    """One layer and the norm before it. The norm after it is the layer's own `next_norm`."""

    first_norm: Tensor
    layer: LayerWeights


class ThoughtBlocks:
    """T and C of one model."""

    def __init__(
        self,
        decoder: Decoder,
        config: ThinkingConfig,
        t: ThoughtBlock,
        c: ThoughtBlock,
        queries: Tensor,
        scale: Tensor,
    ) -> None:
        self.config = config
        self._decoder = decoder
        self._arrays = arrays_on(decoder.backend.device)
        self._t, self._c = t, c
        self._queries, self._scale = queries, scale  # [c, hidden], [hidden]
        self._start = self._ids([config.start_id])
        self._uniform: dict[tuple[int, int, int], ForwardBatch] = {}
        self._states: OrderedDict[ThoughtIds, Tensor] = OrderedDict()
        backend, model = decoder.backend, decoder.config
        self._max_states = max(MAX_CHUNKS, _STATE_CACHE_BYTES // (queries.nbytes))
        self._num_pages = -(-config.longest // backend.page_size)  # per chunk
        self._kv = backend.new_kv_layer(
            MAX_CHUNKS * self._num_pages, model.num_kv_heads, model.head_dim
        )  # scratch

    def think(self, hidden: Tensor, *, canonical: bool) -> list[ThoughtIds]:
        """Run T on n chunks' hidden states, [n, c, hidden]. Return a thought for each."""
        return [
            thought
            for part in self._arrays.split(hidden, MAX_CHUNKS)
            for thought in (self._think(part, canonical) if len(part) else ())
        ]

    def compress(self, thoughts: Sequence[ThoughtIds]) -> Tensor:
        """Run C on non-trivial thoughts. Return their states, [n, c, hidden]."""
        missing = [thought for thought in dict.fromkeys(thoughts) if thought not in self._states]
        for start in range(0, len(missing), MAX_CHUNKS):
            part = missing[start : start + MAX_CHUNKS]
            self._states.update(zip(part, self._compress(part), strict=True))
        for thought in thoughts:
            self._states.move_to_end(thought)
        states = self._arrays.stack([self._states[thought] for thought in thoughts])
        while len(self._states) > self._max_states:
            self._states.popitem(last=False)
        return states

    def first_token(self, hidden: Tensor, *, canonical: bool) -> Tensor:
        """Return the first token of each of n thoughts, int64 [n]. hidden: [n, c, hidden]."""
        n, c, width = hidden.shape
        self._write_kv(self._t, hidden.view(n * c, width), self._uniform_batch(n, 0, c), canonical)
        return self.next_token(self._arrays.tile(self._start, (n,)), 0, canonical=canonical)

    def next_token(
        self, token_ids: Tensor, count: int, *, canonical: bool, which: Sequence[int] | None = None
    ) -> Tensor:
        """Return the next token of n thoughts whose `count`-th tokens are `token_ids` [n]; the 0th is the start
        token. which: the chunks they belong to, if not the first n."""
        n, start = len(token_ids), self.config.chunk + count
        if which is None:
            batch = self._uniform_batch(n, start, 1)
        else:
            batch = self._batch(np.array(which), np.full(n, start), np.ones(n, np.int64))
        return self._greedy(self._run(self._t, self._decoder.embed(token_ids), batch, canonical), canonical)

    def _think(self, hidden: Tensor, canonical: bool) -> list[ThoughtIds]:
        thoughts: list[list[int]] = [[] for _ in hidden]
        active = list(range(len(hidden)))
        ids: list[int] = self.first_token(hidden, canonical=canonical).tolist()
        for count in range(1, self.config.max_thought + 1):
            sampled = zip(active, ids, strict=True)
            unfinished = [(which, token_id) for which, token_id in sampled if token_id != self.config.end_id]
            for which, token_id in unfinished:
                thoughts[which].append(token_id)
            if not unfinished or count == self.config.max_thought:
                break
            active, ids = [which for which, _ in unfinished], [token_id for _, token_id in unfinished]
            ids = self.next_token(self._ids(ids), count, canonical=canonical, which=active).tolist()
        return [tuple(thought) for thought in thoughts]

    def _greedy(self, normed: Tensor, canonical: bool) -> Tensor:
        """Return the greedy token of each normed hidden state [n, hidden]; 0 if there is none. Numbers
        that are not finite reach the logits of the answer, which then ends with an error."""
        ids, _ = self._decoder.backend.sample_greedy(self._decoder.logits(normed, canonical=canonical))
        return ids.clamp_(min=0)

    def _compress(self, thoughts: Sequence[ThoughtIds]) -> list[Tensor]:
        """Return the states, [c, hidden] each."""
        n, c = len(thoughts), self.config.chunk
        which, lengths = np.arange(n), np.array([len(thought) for thought in thoughts])
        tokens = self._decoder.embed(self._ids(list(chain.from_iterable(thoughts))))
        self._write_kv(self._c, tokens, self._batch(which, np.zeros(n, np.int64), lengths), canonical=True)
        queries = self._arrays.tile(self._queries, (n, 1))
        made = self._run(self._c, queries, self._batch(which, lengths, np.full(n, c)), canonical=True)
        return [state * self._scale for state in made.view(n, c, -1)]

    def _write_kv(self, block: ThoughtBlock, residual: Tensor, batch: ForwardBatch, canonical: bool) -> None:
        """Write K and V of tokens that are needed only as context."""
        decoder, ops = self._decoder, self._decoder.backend
        shape, at = decoder.layer_shape, decoder.rope_at(batch.positions)
        x = ops.rms_norm(residual, block.first_norm, shape.eps)
        write_kv(ops, x, block.layer, shape, self._kv, batch, at, canonical=canonical)

    def _run(self, block: ThoughtBlock, residual: Tensor, batch: ForwardBatch, canonical: bool) -> Tensor:
        """Run tokens through a block and the norm after it."""
        decoder, ops = self._decoder, self._decoder.backend
        residual = residual.contiguous()
        x = ops.rms_norm(residual, block.first_norm, decoder.layer_shape.eps)
        at = decoder.rope_at(batch.positions)
        ops.layer(residual, x, block.layer, decoder.layer_shape, self._kv, batch, at, canonical=canonical)
        return x

    def _uniform_batch(self, n: int, start: int, length: int) -> ForwardBatch:
        """Return `length` tokens of each of the first n sequences, from position `start`. It is cached."""
        key = (n, start, length)
        if key not in self._uniform:
            self._uniform[key] = self._batch(np.arange(n), np.full(n, start), np.full(n, length))
        return self._uniform[key]

    def _batch(self, which: Ints, starts: Ints, lengths: Ints) -> ForwardBatch:
        """Return `lengths[i]` tokens of the sequence of chunk `which[i]`, from position `starts[i]`."""
        backend = self._decoder.backend
        size, from_numpy = backend.page_size, self._arrays.from_numpy
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        owners = np.repeat(np.arange(len(which)), lengths)
        positions = starts[owners] + np.arange(len(owners)) - bounds[owners]
        table = which[:, None] * self._num_pages + np.arange(self._num_pages)
        slots = table[owners, positions // size] * size + positions % size
        at, slot = from_numpy(np.stack((positions, slots)))
        tiles = self._tiles(bounds)
        return ForwardBatch(
            token_ids=self._arrays.zeros_like(at),
            positions=at,
            slots=slot,
            span_starts=from_numpy(bounds.astype(np.int32)),
            page_table=from_numpy(table.astype(np.int32)),
            tiles=None if tiles is None else from_numpy(tiles),
            num_short_tiles=0 if tiles is None else len(tiles),
        )

    def _tiles(self, bounds: Ints) -> Tiles | None:
        """Return short attention tiles, for backends that use them (see `ForwardBatch`)."""
        config = self._decoder.config
        tokens = self._decoder.backend.tile_tokens(1, config.num_heads // config.num_kv_heads)
        if not tokens:
            return None
        return list_tiles(bounds, lambda _: tokens, self._num_pages)[0]

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return self._arrays.tensor(token_ids, dtype=self._arrays.int64)


def load_blocks(folder: Path, config: ThinkingConfig, decoder: Decoder) -> ThoughtBlocks:
    """Load T and C from a model folder, in the decoder's dtype and weight layout."""
    held = ThinkingTensors(read_thinking_weights(folder, config, decoder.config))
    loader = WeightLoader(held, decoder.config, decoder.backend, decoder.dtype)
    blocks = []
    for name in ("t", "c"):
        norm = loader.tensor(f"{name}.layer.input_layernorm.weight")
        layer = loader.layer(f"{name}.layer.", loader.tensor(f"{name}.norm.weight"))
        blocks.append(ThoughtBlock(norm, layer))
    t, c = blocks
    return ThoughtBlocks(decoder, config, t, c, loader.tensor("c.queries"), loader.tensor("c.scale"))
