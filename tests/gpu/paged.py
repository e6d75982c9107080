"""Sequences of given lengths in shuffled pages of the device, and passes over them; slots nobody wrote hold NaN."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from gpu_numbers import random
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.ops import Backend

Span = tuple[int, int, int]  # sequence, first position, number of rows


@dataclass(frozen=True)
class Store:
    layer: KVLayer
    page_table: Tensor  # int32 [sequences, max_pages], on the CPU
    keys: list[Tensor]  # of each sequence [length, KVH, D]
    values: list[Tensor]

    def rows(self, spans: list[Span], padding: int = 0) -> ForwardBatch:
        size, device = self.layer.keys.shape[3], self.layer.keys.device
        positions = [at for _, first, count in spans for at in range(first, first + count)]
        owners = [sequence for sequence, _, count in spans for _ in range(count)]
        pages = [int(self.page_table[s, at // size]) for s, at in zip(owners, positions, strict=True)]
        slots = [page * size + at % size for page, at in zip(pages, positions, strict=True)]
        starts = [0]
        for _, _, count in spans:
            starts.append(starts[-1] + count)
        return ForwardBatch(
            token_ids=torch.zeros(len(positions) + padding, dtype=torch.int64, device=device),
            positions=torch.tensor(positions + [0] * padding, device=device),
            slots=torch.tensor(slots + [-1] * padding, device=device),
            span_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            page_table=self.page_table[[s for s, _, _ in spans]].contiguous().to(device),
        )

    def with_tiles(self, rows: ForwardBatch, backend: Backend, group: int) -> ForwardBatch:
        """The tiles a runner would bring, so that nothing is read back from the device."""
        starts = rows.span_starts.tolist()
        lengths = [stop - start for start, stop in pairwise(starts)]
        short, pages = backend.tile_tokens(1, group), rows.page_table.shape[1]
        tiles = [
            (tokens, starts[span] + at, min(tokens, length - at), span * pages)
            for span, length in enumerate(lengths)
            for tokens in (backend.tile_tokens(length, group),)
            for at in range(0, length, tokens)
        ]
        tiles.sort(key=lambda tile: tile[0])
        found = torch.tensor([tile[1:] for tile in tiles], dtype=torch.int32, device=rows.page_table.device)
        return replace(rows, tiles=found, num_short_tiles=sum(tile[0] == short for tile in tiles))


def make_store(
    backend: Backend,
    dtype: torch.dtype,
    lengths: list[int],
    kv_heads: int,
    width: int,
    page_seed: int = 0,
) -> Store:
    size, device = backend.page_size, backend.device
    max_pages = max(-(-length // size) for length in lengths)
    num_pages = max_pages * len(lengths) + 3
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(page_seed))
    table = order[: max_pages * len(lengths)].view(len(lengths), max_pages).int()
    layer = backend.new_kv_layer(num_pages, kv_heads, width)
    layer.keys.fill_(float("nan"))
    layer.values.fill_(float("nan"))
    keys = [random(length, kv_heads, width, dtype=dtype, device=device, seed=length) for length in lengths]
    values = [
        random(length, kv_heads, width, dtype=dtype, device=device, seed=length + 1) for length in lengths
    ]
    store = Store(layer, table, keys, values)
    rows = store.rows([(sequence, 0, length) for sequence, length in enumerate(lengths)])
    backend.store_kv(torch.cat(keys), torch.cat(values), layer, rows.slots)
    return store
