"""Attention in torch operations, in one fixed form for fast and canonical passes alike.

A span is cut into tiles of QUERY_TILE consecutive rows, the last one padded. All tiles meet the KV in
blocks of KV_BLOCK positions from position 0, as batched products whose matrices always have the same shape,

    scores  [tile rows * G, D] x [D, KV_BLOCK]      outputs  [tile rows * G, KV_BLOCK] x [KV_BLOCK, D]

with a running softmax in fp32. A block that a row does not see leaves the row as it was. Tiles are taken in
groups, so that memory does not grow with the pass, and never fewer than two matrices at once: a batch of
one is another product.
"""

from itertools import pairwise

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, KVLayer

KV_BLOCK = 64
QUERY_TILE = 16
_GROUP = 16  # tiles at once
_HIDDEN = -1.0e30  # a score that is surely not the largest; exp of it is exactly 0


def attend_tiles(
    q: Tensor, layer: KVLayer, rows: ForwardBatch, *, scale: float, window: int | None
) -> Tensor:
    """q [rows, H, D] -> [rows, H * D]; rows behind the last span are zero."""
    num_rows, heads, width = q.shape
    out = torch.zeros((num_rows, heads * width), dtype=q.dtype)
    spans, tile_tokens = _list_tiles(rows)
    for start in range(0, len(spans), _GROUP):
        some = slice(start, start + _GROUP)
        span, index = torch.tensor(spans[some]), torch.tensor(tile_tokens[some])  # [T], [T, QUERY_TILE]
        if span.shape[0] * layer.keys.shape[1] == 1:
            span, index = span.repeat(2), torch.cat((index, torch.full_like(index, -1)))
        real = index >= 0
        found = _attend_group(q, layer, rows, span, index.clamp(min=0), real, scale, window)
        out[index[real]] = found[real].to(q.dtype)
    return out


def _list_tiles(rows: ForwardBatch) -> tuple[list[int], list[list[int]]]:
    """The span of each tile, and its row indices, -1 for padding."""
    starts = rows.span_starts.tolist()
    spans: list[int] = []
    tiles: list[list[int]] = []
    for span, (first, end) in enumerate(pairwise(starts)):
        for row in range(first, end, QUERY_TILE):
            spans.append(span)
            tiles.append([r if r < end else -1 for r in range(row, row + QUERY_TILE)])
    return spans, tiles


def _attend_group(
    q: Tensor,
    layer: KVLayer,
    rows: ForwardBatch,
    span: Tensor,
    index: Tensor,
    real: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """T tiles -> fp32 [T, QUERY_TILE, H * D]."""
    heads, width = q.shape[1:]
    kv_heads = layer.keys.shape[1]
    group, tiles = heads // kv_heads, span.shape[0]
    last = torch.where(real, rows.positions[index], -1)  # [T, tile]
    first = torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)
    queries = (q[index].to(torch.float32) * scale).view(tiles, QUERY_TILE, kv_heads, group, width)
    queries = queries.transpose(1, 2).reshape(tiles * kv_heads, QUERY_TILE * group, width)
    top = torch.full((tiles, kv_heads, QUERY_TILE, group, 1), _HIDDEN)
    mass = torch.zeros_like(top)
    mixed = torch.zeros((tiles, kv_heads, QUERY_TILE, group, width))
    seen_from = int(torch.where(real, first, last.max() + 1).min()) if window is not None else 0
    for start in range(seen_from // KV_BLOCK * KV_BLOCK, int(last.max()) + 1, KV_BLOCK):
        positions = torch.arange(start, start + KV_BLOCK)
        visible = (positions >= first[..., None]) & (positions <= last[..., None])  # [T, tile, block]
        keys, values = _gather_block(layer, rows, span, positions, visible)
        scores = torch.bmm(queries, keys).view(tiles, kv_heads, QUERY_TILE, group, KV_BLOCK)
        visible = visible[:, None, :, None, :]
        scores = torch.where(visible, scores, _HIDDEN)
        now = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = torch.where(visible, torch.exp(scores - now), 0.0)
        keep = torch.exp(top - now)
        added = torch.bmm(weights.view(tiles * kv_heads, QUERY_TILE * group, KV_BLOCK), values).view(
            mixed.shape
        )
        touched = visible.any(-1, keepdim=True)
        mass = torch.where(touched, mass * keep + weights.sum(-1, keepdim=True), mass)
        mixed = torch.where(touched, mixed * keep + added, mixed)
        top = now
    return (mixed / mass).transpose(1, 2).reshape(tiles, QUERY_TILE, heads * width)


def _gather_block(
    layer: KVLayer, rows: ForwardBatch, span: Tensor, positions: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys [T * KVH, D, block] and values [T * KVH, block, D] in fp32; zero where no row of the tile
    looks."""
    page_size, max_pages = layer.keys.shape[3], rows.page_table.shape[1]
    page = rows.page_table[span][:, (positions // page_size).clamp(max=max_pages - 1)].long()  # [T, block]
    offset = (positions % page_size).expand_as(page)
    looked_at = visible.any(1)[:, None, :]  # [T, 1, block]; a slot nobody wrote may hold anything
    keys = layer.keys[page, :, :, offset].permute(0, 2, 3, 1).to(torch.float32)  # [T, KVH, D, block]
    values = layer.values[page, :, offset].transpose(1, 2).to(torch.float32)  # [T, KVH, block, D]
    keys = torch.where(looked_at[:, :, None, :], keys, 0.0)
    values = torch.where(looked_at[..., None], values, 0.0)
    return keys.flatten(0, 1).contiguous(), values.flatten(0, 1).contiguous()
