"""Requests of given lengths in shuffled KV pages, and batches over them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.ops import Backend

SpanTuple = tuple[int, int, int]  # request, first position, number of tokens


@dataclass(frozen=True)
class PagedKV:
    layer: KVLayer
    page_table: Tensor  # int32 [requests, max_pages], on the CPU
    keys: list[Tensor]  # of each request [length, KVH, D]
    values: list[Tensor]

    @property
    def page_size(self) -> int:
        return self.layer.keys.shape[3]

    def batch(self, spans: Sequence[SpanTuple], padding: int = 0) -> ForwardBatch:
        size, device = self.page_size, self.layer.keys.device
        positions = [at for _, first, count in spans for at in range(first, first + count)]
        requests = [request for request, _, count in spans for _ in range(count)]
        pages = [int(self.page_table[r, at // size]) for r, at in zip(requests, positions, strict=True)]
        slots = [page * size + at % size for page, at in zip(pages, positions, strict=True)]
        starts = [0]
        for _, _, count in spans:
            starts.append(starts[-1] + count)
        return ForwardBatch(
            token_ids=torch.zeros(len(positions) + padding, dtype=torch.int64, device=device),
            positions=torch.tensor(positions + [0] * padding, device=device),
            slots=torch.tensor(slots + [-1] * padding, device=device),
            span_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            page_table=self.page_table[[request for request, _, _ in spans]].contiguous().to(device),
        )

    def with_tiles(self, batch: ForwardBatch, backend: Backend, group: int) -> ForwardBatch:
        """Add the tiles that the model runner would pass, so that nothing is read back from the device."""
        starts = batch.span_starts.tolist()
        lengths = [stop - start for start, stop in pairwise(starts)]
        short, pages = backend.tile_tokens(1, group), batch.page_table.shape[1]
        tiles = [
            (tokens, starts[span] + at, min(tokens, length - at), span * pages, 0, 0, 0)
            for span, length in enumerate(lengths)
            for tokens in (backend.tile_tokens(length, group),)
            for at in range(0, length, tokens)
        ]
        tiles.sort(key=lambda tile: tile[0])
        found = torch.tensor([tile[1:] for tile in tiles], dtype=torch.int32, device=batch.page_table.device)
        return replace(batch, tiles=found, num_short_tiles=sum(tile[0] == short for tile in tiles))


def shuffled_pages(lengths: Sequence[int], page_size: int, seed: int = 0) -> tuple[int, Tensor]:
    """Return the number of pages, a few more than needed, and a page table."""
    max_pages = max(-(-length // page_size) for length in lengths)
    num_pages = max_pages * len(lengths) + 3
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed))
    return num_pages, order[: max_pages * len(lengths)].view(len(lengths), max_pages).int()


def stored(
    backend: Backend, layer: KVLayer, page_table: Tensor, keys: list[Tensor], values: list[Tensor]
) -> PagedKV:
    """Write keys and values of all requests."""
    kv = PagedKV(layer, page_table, keys, values)
    batch = kv.batch([(request, 0, len(one)) for request, one in enumerate(keys)])
    backend.store_kv(torch.cat(keys), torch.cat(values), layer, batch.slots)
    return kv
