"""T and C as the engine runs them: many chunks at once, by the backend of the backbone.

Each chunk is a little sequence of its own, in scratch pages: T reads the chunk's rows and writes its thought token by token,
C reads a thought and gives the next chunk's state. What is only read leaves its keys and values and goes no further. What
they compute is `reference.py`'s; in canonical form, which every operation has for any number of rows, a chunk's bits do not
depend on the chunks beside it. C is always canonical, and what it made of a thought is kept: the same thought comes again
and again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.step_plan import ThoughtIds
from holdfast.models.decoder import Decoder, WeightLoader
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.layer import LayerWeights, write_kv
from holdfast.thinking.config import ThinkingConfig
from holdfast.thinking.weights import ThinkingTensors, read_thinking_weights

MOST_CHUNKS = 128  # thought about at once
_KEPT_BYTES = 64 << 20  # of states

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """One layer with the norm before it; the norm behind it is the layer's own `next_norm`."""

    first_norm: Tensor
    layer: LayerWeights


class Blocks:
    """T and C of one model."""

    def __init__(
        self, decoder: Decoder, config: ThinkingConfig, t: Block, c: Block, queries: Tensor, scale: Tensor
    ) -> None:
        self.config = config
        self._decoder = decoder
        self._t, self._c = t, c
        self._queries, self._scale = queries, scale  # [c, hidden], [hidden]
        self._start = self._ids([config.start_id])
        self._together: dict[tuple[int, int, int], ForwardBatch] = {}
        self._states: OrderedDict[ThoughtIds, Tensor] = OrderedDict()
        backend, model = decoder.backend, decoder.config
        self._most_kept = max(MOST_CHUNKS, _KEPT_BYTES // (queries.numel() * queries.element_size()))
        self._num_pages = -(-config.longest // backend.page_size)  # of a little sequence
        self._kv = backend.new_kv_layer(
            MOST_CHUNKS * self._num_pages, model.num_kv_heads, model.head_dim
        )  # scratch

    def think(self, rows: Tensor, *, canonical: bool) -> list[ThoughtIds]:
        """T over the rows of n chunks, [n, c, hidden]."""
        return [
            thought
            for some in torch.split(rows, MOST_CHUNKS)
            for thought in (self._think(some, canonical) if len(some) else ())
        ]

    def compress(self, thoughts: Sequence[ThoughtIds]) -> Tensor:
        """C over thoughts none of which is trivial: their states, [n, c, hidden]."""
        missing = [thought for thought in dict.fromkeys(thoughts) if thought not in self._states]
        for start in range(0, len(missing), MOST_CHUNKS):
            some = missing[start : start + MOST_CHUNKS]
            self._states.update(zip(some, self._compress(some), strict=True))
        for thought in thoughts:
            self._states.move_to_end(thought)
        states = torch.stack([self._states[thought] for thought in thoughts])
        while len(self._states) > self._most_kept:
            self._states.popitem(last=False)
        return states

    def say_first(self, rows: Tensor, *, canonical: bool) -> Tensor:
        """T's first token behind each of n chunks, int64 [n]; rows [n, c, hidden]."""
        n, c, hidden = rows.shape
        self._remember(self._t, rows.view(n * c, hidden), self._all(n, 0, c), canonical)
        return self.say_next(self._start.repeat(n), 0, canonical=canonical)

    def say_next(
        self, token_ids: Tensor, count: int, *, canonical: bool, which: Sequence[int] | None = None
    ) -> Tensor:
        """T's token behind the count-th, token_ids [n], the start being the 0th; which of the chunks these are, if not the
        first n."""
        n, start = len(token_ids), self.config.chunk + count
        if which is None:
            rows = self._all(n, start, 1)
        else:
            rows = self._rows(np.array(which), np.full(n, start), np.ones(n, np.int64))
        return self._say(self._run(self._t, self._decoder.embed(token_ids), rows, canonical), canonical)

    def _think(self, rows: Tensor, canonical: bool) -> list[ThoughtIds]:
        thoughts: list[list[int]] = [[] for _ in rows]
        open_ones = list(range(len(rows)))
        ids: list[int] = self.say_first(rows, canonical=canonical).tolist()
        for count in range(1, self.config.max_thought + 1):
            said = zip(open_ones, ids, strict=True)
            going = [(which, token_id) for which, token_id in said if token_id != self.config.end_id]
            for which, token_id in going:
                thoughts[which].append(token_id)
            if not going or count == self.config.max_thought:
                break
            open_ones, ids = [which for which, _ in going], [token_id for _, token_id in going]
            ids = self.say_next(self._ids(ids), count, canonical=canonical, which=open_ones).tolist()
        return [tuple(thought) for thought in thoughts]

    def _say(self, behind: Tensor, canonical: bool) -> Tensor:
        """The token each row gives, the rows being as the head takes them."""
        return self._decoder.backend.sample_greedy(self._decoder.logits(behind, canonical=canonical))[0]

    def _compress(self, thoughts: Sequence[ThoughtIds]) -> list[Tensor]:
        """Their states, [c, hidden] each."""
        n, c = len(thoughts), self.config.chunk
        which, lengths = np.arange(n), np.array([len(thought) for thought in thoughts])
        tokens = self._decoder.embed(self._ids(list(chain.from_iterable(thoughts))))
        self._remember(self._c, tokens, self._rows(which, np.zeros(n, np.int64), lengths), canonical=True)
        queries = self._queries.repeat(n, 1)
        made = self._run(self._c, queries, self._rows(which, lengths, np.full(n, c)), canonical=True)
        return [state * self._scale for state in made.view(n, c, -1)]

    def _remember(self, block: Block, residual: Tensor, rows: ForwardBatch, canonical: bool) -> None:
        """These rows as a block's later rows see them. What comes of them behind the block is nobody's business."""
        decoder, ops = self._decoder, self._decoder.backend
        shape, at = decoder.layer_shape, decoder.rope_at(rows.positions)
        x = ops.rms_norm(residual, block.first_norm, shape.eps)
        write_kv(ops, x, block.layer, shape, self._kv, rows, at, canonical=canonical)

    def _run(self, block: Block, residual: Tensor, rows: ForwardBatch, canonical: bool) -> Tensor:
        """These rows through a block, normed by what stands behind it."""
        decoder, ops = self._decoder, self._decoder.backend
        residual = residual.contiguous()
        x = ops.rms_norm(residual, block.first_norm, decoder.layer_shape.eps)
        at = decoder.rope_at(rows.positions)
        ops.layer(residual, x, block.layer, decoder.layer_shape, self._kv, rows, at, canonical=canonical)
        return x

    def _all(self, n: int, start: int, length: int) -> ForwardBatch:
        """So many rows of each of the first n little sequences, from the same position on; made once and kept."""
        key = (n, start, length)
        if key not in self._together:
            self._together[key] = self._rows(np.arange(n), np.full(n, start), np.full(n, length))
        return self._together[key]

    def _rows(self, which: Ints, starts: Ints, lengths: Ints) -> ForwardBatch:
        """So many rows of each of these little sequences, from these positions on."""
        backend = self._decoder.backend
        size, device = backend.page_size, backend.device
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        owners = np.repeat(np.arange(len(which)), lengths)
        positions = starts[owners] + np.arange(len(owners)) - bounds[owners]
        table = which[:, None] * self._num_pages + np.arange(self._num_pages)
        slots = table[owners, positions // size] * size + positions % size
        at, slot = torch.from_numpy(np.stack((positions, slots))).to(device)
        tiles = self._tiles(bounds)
        return ForwardBatch(
            token_ids=torch.zeros_like(at),
            positions=at,
            slots=slot,
            span_starts=torch.from_numpy(bounds.astype(np.int32)).to(device),
            page_table=torch.from_numpy(table.astype(np.int32)).to(device),
            tiles=None if tiles is None else torch.from_numpy(tiles).to(device),
            num_short_tiles=0 if tiles is None else len(tiles),
        )

    def _tiles(self, bounds: Ints) -> NDArray[np.int32] | None:
        """Short tiles for paths that attend in such, as in `ForwardBatch`."""
        config = self._decoder.config
        tokens = self._decoder.backend.tile_tokens(1, config.num_heads // config.num_kv_heads)
        if not tokens:
            return None
        found = [
            (row, min(tokens, stop - row), number * self._num_pages)
            for number, (start, stop) in enumerate(pairwise(bounds.tolist()))
            for row in range(start, stop, tokens)
        ]
        return np.array(found, np.int32).reshape(-1, 3)

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64, device=self._decoder.backend.device)


def load_blocks(folder: Path, config: ThinkingConfig, decoder: Decoder) -> Blocks:
    """T and C from a model's folder, rounded to the decoder's dtype and packed as its weights are."""
    held = ThinkingTensors(read_thinking_weights(folder, config, decoder.config))
    loader = WeightLoader(held, decoder.backend, decoder.dtype)
    blocks = []
    for name in ("t", "c"):
        norm = loader.tensor(f"{name}.layer.input_layernorm.weight")
        layer = loader.layer(f"{name}.layer.", loader.tensor(f"{name}.norm.weight"), window=None)
        blocks.append(Block(norm, layer))
    t, c = blocks
    return Blocks(decoder, config, t, c, loader.tensor("c.queries"), loader.tensor("c.scale"))
