"""Attention in torch operations, in one form for fast and canonical passes.

A span is divided into tiles of QUERY_TILE consecutive tokens, the last one padded. Tiles read the
KV in blocks of KV_BLOCK positions from position 0, as batched GEMMs whose matrices always have the
same shape,

    scores  [tile * G, D] x [D, KV_BLOCK]      outputs  [tile * G, KV_BLOCK] x [KV_BLOCK, D]

with an online softmax in fp32. A block that a token does not see leaves it unchanged. Tiles are
computed in groups, so that memory does not grow with the batch. A batched GEMM always has two
matrices or more: torch computes a batch of one by another kernel.
"""

from itertools import pairwise

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer

KV_BLOCK = 64
QUERY_TILE = 16
_TILES_AT_ONCE = 16
_MASKED = -1.0e30  # score of a masked position; its exp is exactly 0


def attention(
    q: Tensor,
    layer: KVLayer,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [tokens, H, D] -> [tokens, H * D]; padding tokens are zero."""
    num_tokens, heads, width = q.shape
    out = torch.zeros((num_tokens, heads * width), dtype=q.dtype)
    spans, tile_tokens = _list_tiles(batch)
    for start in range(0, len(spans), _TILES_AT_ONCE):
        group = slice(start, start + _TILES_AT_ONCE)
        span, index = torch.tensor(spans[group]), torch.tensor(tile_tokens[group])  # [T], [T, QUERY_TILE]
        if span.shape[0] * layer.keys.shape[1] == 1:
            span, index = span.repeat(2), torch.cat((index, torch.full_like(index, -1)))
        valid = index >= 0
        result = _attend_tiles(
            q, layer, batch, span, index.clamp(min=0), valid, scale, window, soft_cap, sinks
        )
        out[index[valid]] = result[valid].to(q.dtype)
    return out


def _list_tiles(batch: ForwardBatch) -> tuple[list[int], list[list[int]]]:
    """Return the span of each tile, and the indices of its tokens, -1 for padding."""
    starts = batch.span_starts.tolist()
    spans: list[int] = []
    tiles: list[list[int]] = []
    for span, (first, end) in enumerate(pairwise(starts)):
        for row in range(first, end, QUERY_TILE):
            spans.append(span)
            tiles.append([r if r < end else -1 for r in range(row, row + QUERY_TILE)])
    return spans, tiles


def _attend_tiles(
    q: Tensor,
    layer: KVLayer,
    batch: ForwardBatch,
    span: Tensor,
    index: Tensor,
    valid: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """T tiles -> fp32 [T, QUERY_TILE, H * D]."""
    heads, width = q.shape[1:]
    kv_heads = layer.keys.shape[1]
    group, tiles = heads // kv_heads, span.shape[0]
    last = torch.where(valid, batch.positions[index], -1)  # [T, tile]
    first = torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)
    queries = (q[index].to(torch.float32) * scale).view(tiles, QUERY_TILE, kv_heads, group, width)
    queries = queries.transpose(1, 2).reshape(tiles * kv_heads, QUERY_TILE * group, width)
    row_max = torch.full((tiles, kv_heads, QUERY_TILE, group, 1), _MASKED)
    row_sum = torch.zeros_like(row_max)
    if sinks is not None:  # a score before the first position: its weight is exp(0), its value zero
        row_max = sinks.view(1, kv_heads, 1, group, 1).expand_as(row_max)
        row_sum = torch.ones_like(row_sum)
    acc = torch.zeros((tiles, kv_heads, QUERY_TILE, group, width))
    seen_from = int(torch.where(valid, first, last.max() + 1).min()) if window is not None else 0
    for start in range(seen_from // KV_BLOCK * KV_BLOCK, int(last.max()) + 1, KV_BLOCK):
        positions = torch.arange(start, start + KV_BLOCK)
        visible = (positions >= first[..., None]) & (positions <= last[..., None])  # [T, tile, block]
        keys, values = _gather_block(layer, batch, span, positions, visible)
        scores = torch.bmm(queries, keys).view(tiles, kv_heads, QUERY_TILE, group, KV_BLOCK)
        if soft_cap is not None:
            scores = torch.tanh(scores / soft_cap) * soft_cap
        visible = visible[:, None, :, None, :]
        scores = torch.where(visible, scores, _MASKED)
        new_max = torch.maximum(row_max, scores.amax(-1, keepdim=True))
        weights = torch.where(visible, torch.exp(scores - new_max), 0.0)
        rescale = torch.exp(row_max - new_max)
        added = torch.bmm(weights.view(tiles * kv_heads, QUERY_TILE * group, KV_BLOCK), values).view(
            acc.shape
        )
        is_visible = visible.any(-1, keepdim=True)
        row_sum = torch.where(is_visible, row_sum * rescale + weights.sum(-1, keepdim=True), row_sum)
        acc = torch.where(is_visible, acc * rescale + added, acc)
        row_max = new_max
    return (acc / row_sum).transpose(1, 2).reshape(tiles, QUERY_TILE, heads * width)


def _gather_block(
    layer: KVLayer, batch: ForwardBatch, span: Tensor, positions: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return keys [T * KVH, D, block] and values [T * KVH, block, D] in fp32; zero if no token of the tile
    sees the position."""
    page_size, max_pages = layer.keys.shape[3], batch.page_table.shape[1]
    page = batch.page_table[span][:, (positions // page_size).clamp(max=max_pages - 1)].long()  # [T, block]
    offset = (positions % page_size).expand_as(page)
    is_read = visible.any(1)[:, None, :]  # [T, 1, block]; a slot that was never written may hold NaN
    keys = layer.keys[page, :, :, offset].permute(0, 2, 3, 1).to(torch.float32)  # [T, KVH, D, block]
    values = layer.values[page, :, offset].transpose(1, 2).to(torch.float32)  # [T, KVH, block, D]
    keys = torch.where(is_read[:, :, None, :], keys, 0.0)
    values = torch.where(is_read[..., None], values, 0.0)
    return keys.flatten(0, 1).contiguous(), values.flatten(0, 1).contiguous()
