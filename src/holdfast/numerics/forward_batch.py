"""The rows of one pass as tensors: what the backend needs to know of a batch, and no more.

ForwardBatch stand in span order. A span is a run of consecutive positions of one sequence; padding rows stand behind the
last span, write nothing and attend to nothing.

    row          0    1    2    3 | 4 | 5    6 | 7 (padding)
    span         0    0    0    0 | 1 | 2    2 |
    position     8    9   10   11 | 37| 0    1 | 0
    span_starts  0                  4   5        7
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """One pass. All tensors are contiguous and on the device the pass runs on."""

    token_ids: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows], 0 for padding
    slots: Tensor  # int64 [rows], page * page_size + offset of the row's own KV slot, -1 for padding
    span_starts: (
        Tensor  # int32 [spans + 1], first row of each span; the last entry is the number of real rows
    )
    page_table: Tensor  # int32 [spans, max_pages], pages of each span's sequence in order, 0 behind the last
    # For paths that attend in tiles, int32 [tiles, 3]: a tile's first row, how many rows it has (0: nothing to do), and
    # where its sequence's pages begin in the flat page_table.
    tiles: Tensor | None = None
    num_short_tiles: int = 0  # how many of them, the first ones, are short: spans of few rows have such
    max_pages: int = (
        0  # pages of the longest sequence the pass may ever hold; 0: page_table is as wide as needed
    )

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


@dataclass(frozen=True)
class KVLayer:
    """The keys and values of one layer, in pages. How they lie in memory is up to the path of the backend.

    keys    [pages, kv_heads, head_dim, page_size]
    values  [pages, kv_heads, page_size, head_dim]
    """

    keys: Tensor
    values: Tensor
