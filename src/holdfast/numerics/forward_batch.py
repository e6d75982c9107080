"""The tokens of one forward pass as tensors, and the KV cache and the recurrent states of one layer.

A span is a run of consecutive positions of one request. The tokens of a batch are ordered by span.
Padding tokens come last; they write no KV and attend to nothing.

    token        0    1    2    3 | 4 | 5    6 | 7 (padding)
    span         0    0    0    0 | 1 | 2    2 |
    position     8    9   10   11 | 37| 0    1 | 0
    span_starts  0                  4   5        7
"""

from dataclasses import dataclass

from holdfast.numerics.arrays import Tensor


@dataclass(frozen=True)
class AttentionWork:
    """Which programs of an attention kernel read which contexts, for backends that attend in tiles.

    programs int32 [entries, 4]: tile (-1: none), number of the program, programs of the tile, first
    slot. shared int32 [tiles with several programs, 3]: tile (-1: none), first slot, splits. A slot
    of a workspace holds the result of one token and split.
    """

    programs: Tensor
    shared: Tensor
    num_slots: int


@dataclass(frozen=True)
class RecurrentWork:
    """The tokens that recurrent layers compute, for backends that compute them side by side: the rows of the
    pass, then the replayed tokens.

    span_of int32 [tokens]: the span of each; -1: none. firsts int32 [spans]: the first replayed one of each.
    """

    span_of: Tensor
    firsts: Tensor


@dataclass(frozen=True)
class RecurrentBatch:
    """Where a pass reads and writes recurrent states.

    spans int32 [spans, 6], contiguous, in any order:

        slot        of the span's request in every `StateLayer`; -1: no request
        start       the position of the span's first token
        checkpoint  the slot holds the state after the tokens before this position; at most start
        store       the checkpoint after the pass, from `checkpoint` to the end of the span. The state is
                    written if it is larger than `checkpoint`
        first_row   the span's rows of the pass: first_row .. end_row - 1. Rows of no span are padding
        end_row

    The pass reads the state at the checkpoint (zeros if that is 0), computes the tokens from there to start
    again from the log, then the span's own tokens, and writes their inputs to the log. The convolution also
    reads the kernel - 1 positions before the checkpoint from the log. So start - checkpoint + kernel - 1 and, for
    the next pass, stop - store + kernel - 1 are at most `StateLayer.log_len`. Of more tokens the last are logged.

    num_replayed: the sum of start - checkpoint of all spans, or more. A captured graph is for any pass with at
    most so many spans and replayed tokens.
    """

    spans: Tensor
    num_replayed: int
    # Set by `Backend.prepare`, once a pass.
    work: RecurrentWork | None = None


@dataclass(frozen=True)
class ForwardBatch:
    """One pass. All tensors are contiguous and on the device of the pass."""

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens], 0 for padding
    slots: Tensor  # int64 [tokens], KV slot: page * page_size + offset; -1: not written
    # int32 [spans + 1], the first token of each span; the last entry is the number of real tokens
    span_starts: Tensor
    # int32 [spans, max_pages], the pages of each span's request in order, padded with 0
    page_table: Tensor
    # For backends that attend in tiles, int32 [tiles, TILE_COLUMNS] as in `attention_tiles.py`. Short
    # tiles come first.
    tiles: Tensor | None = None
    num_short_tiles: int = 0
    # Pages of the longest request that a captured graph allows; 0: the width of page_table.
    max_pages: int = 0
    # Set by `Backend.prepare`, once a pass.
    attention_work: AttentionWork | None = None
    # For models with recurrent layers.
    recurrent: RecurrentBatch | None = None

    @property
    def num_tokens(self) -> int:
        """Including padding."""
        return self.token_ids.shape[0]


@dataclass(frozen=True)
class StateLayer:
    """The recurrent states of one layer, in slots: a request owns one.

    state  fp32 [slots, heads, rows, columns], the state at the slot's checkpoint. The order of the numbers of a
           head is the backend's
    log    [slots, log_len, width] in the model's dtype: the inputs of the recurrence at position p are in
           entry p % log_len. Entries of positions before 0 are read as zeros.
    """

    state: Tensor
    log: Tensor

    @property
    def log_len(self) -> int:
        return self.log.shape[1]


@dataclass(frozen=True)
class KVLayer:
    """What one layer keeps of requests: keys and values in pages, none of them in a layer without attention,
    and the states of a recurrent layer. The strides of pages are those the backend prefers.

    keys    [pages, kv_heads, head_dim, page_size]
    values  [pages, kv_heads, page_size, head_dim]
    """

    keys: Tensor
    values: Tensor
    states: StateLayer | None = None
