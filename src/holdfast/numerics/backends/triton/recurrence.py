"""Recurrences token by token: the gated delta rule, state spaces, gated short convolutions; and the gated norm.

A pass takes two kernels a layer. The first computes what does not depend on the state, for all tokens side by
side, replayed ones too: convolution, SiLU, lengths, decays. The second has a program for each span, head and
block of columns, which keeps its part of the state in registers from the checkpoint to the last token.

No bit depends on the pass. Multiplications and additions are rounded as they are written (`_EXACT`: the compiler
fuses none). The sums over the state's rows have one place in the code: products of _PARTS quarters of the rows
are added row by row, and these by `tl.sum`, whose order depends on the compiled kernel alone.

The log is read by the first kernel and written by the second.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch, pdl_launch_next, pdl_wait
from holdfast.numerics.backends.triton.norm import row_sum
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch, RecurrentWork, StateLayer
from holdfast.numerics.recurrence import GatedDelta, ShortConv, StateSpace

_L2_EPS = tl.constexpr(1e-6)
_PARTS = 4
_REGISTERS = 4096  # elements of a state that a warp keeps
_MAX_COLUMNS = 32  # of a program
_STAGES = 3  # tokens whose inputs are read ahead
_LOG_ROWS = tl.constexpr(8)
_PIECE = 1024  # columns that a program prepares
_REPLAYERS = 256  # programs for a piece of replayed tokens, of which a captured graph allows many and has few
_SPANS = tl.constexpr(64)
_ITEMS = tl.constexpr(32)


class _Exact(TypedDict):
    enable_fp_fusion: bool


_EXACT: _Exact = {"enable_fp_fusion": False}


# ---- the tokens of a pass ----


def prepare(batch: RecurrentBatch, num_rows: int) -> RecurrentWork:
    """Find the span of each row and of each replayed token, once a pass."""
    spans, num_replayed = batch.spans, batch.num_replayed
    span_of = torch.empty(num_rows + num_replayed, dtype=torch.int32, device=spans.device)
    firsts = torch.empty(len(spans) + 1, dtype=torch.int32, device=spans.device)
    if len(span_of):
        _list_tokens[(triton.cdiv(len(span_of), _ITEMS.value),)](
            span_of, firsts, spans, len(spans), num_rows, len(span_of), num_warps=4
        )
    return RecurrentWork(span_of, firsts)


@triton.jit(do_not_specialize=["num_spans", "num_rows", "num_items"])
def _list_tokens(span_of, firsts, spans, num_spans, num_rows, num_items):
    """span_of[i]: the span of row i, or of replayed token i - num_rows; -1: none. firsts[s]: where the replayed
    tokens of span s begin among all items; firsts[num_spans]: where all end."""
    item = tl.program_id(0) * _ITEMS + tl.arange(0, _ITEMS)
    found = tl.full([_ITEMS], -1, tl.int32)
    next_item = num_rows
    for start in range(0, num_spans, _SPANS):
        span = start + tl.arange(0, _SPANS)
        at = spans + span * 6
        is_real = (span < num_spans) & (tl.load(at, mask=span < num_spans, other=-1) >= 0)
        count = tl.load(at + 1, mask=is_real, other=0) - tl.load(at + 2, mask=is_real, other=0)
        first_row, end_row = tl.load(at + 4, mask=is_real, other=0), tl.load(at + 5, mask=is_real, other=0)
        first = next_item + tl.cumsum(count, 0) - count
        if tl.program_id(0) == 0:
            tl.store(firsts + span, first, mask=span < num_spans)
        is_row = (item[:, None] >= first_row[None, :]) & (item[:, None] < end_row[None, :])
        is_replayed = (item[:, None] >= first[None, :]) & (item[:, None] < (first + count)[None, :])
        found = tl.maximum(found, tl.max(tl.where(is_row | is_replayed, span[None, :], -1), 1))
        next_item += tl.sum(count, 0)
    tl.store(span_of + item, found, mask=item < num_items)
    if tl.program_id(0) == 0:
        tl.store(firsts + num_spans, next_item)


def _work(batch: ForwardBatch, num_rows: int) -> tuple[RecurrentBatch, RecurrentWork]:
    assert batch.recurrent is not None
    return batch.recurrent, batch.recurrent.work or prepare(batch.recurrent, num_rows)


# ---- the inputs of the recurrence ----


@dataclass(frozen=True)
class _Shape:
    """Sizes of a recurrence, and where its parts are among the columns of a prepared token: those of the
    convolution, then decays and factors of all heads."""

    heads: int
    groups: int
    rows: int  # of a head's state
    columns: int
    conv_width: int
    keys_at: int
    queries_at: int
    values_at: int

    @property
    def width(self) -> int:
        return -(-(self.conv_width + 2 * self.heads) // 4) * 4


def _shape(weights: GatedDelta | StateSpace) -> _Shape:
    heads, rows, columns = weights.state_shape
    if isinstance(weights, GatedDelta):
        keys = weights.key_heads * rows
        return _Shape(heads, weights.key_heads, rows, columns, weights.conv_width, keys, 0, 2 * keys)
    inner = heads * columns
    size = weights.groups * rows
    return _Shape(heads, weights.groups, rows, columns, weights.conv_width, inner, inner + size, 0)


def gated_delta(x: Tensor, weights: GatedDelta, layer: StateLayer, batch: ForwardBatch) -> Tensor:
    return _run(x, weights, layer, batch)


def ssd(x: Tensor, weights: StateSpace, layer: StateLayer, batch: ForwardBatch) -> Tensor:
    return _run(x, weights, layer, batch)


def _run(x: Tensor, weights: GatedDelta | StateSpace, layer: StateLayer, batch: ForwardBatch) -> Tensor:
    shape, num_rows = _shape(weights), x.shape[0]
    recurrent, work = _work(batch, num_rows)
    assert x.stride(1) == 1 and x.shape[1] == weights.input_width == layer.log.shape[2]
    assert layer.state.shape[1:] == weights.state_shape and layer.state.is_contiguous()
    assert layer.log.is_contiguous() and weights.conv.is_contiguous()
    out = x.new_empty((num_rows, weights.output_width))
    if not num_rows:
        return out
    prepared = torch.empty((len(work.span_of), shape.width), dtype=torch.float32, device=x.device)
    _prepare_tokens(prepared, out, x, weights, shape, layer, recurrent, work)
    block_rows = max(1, int(triton.next_power_of_2(shape.rows)) // _PARTS)
    columns = max(
        4, min(_MAX_COLUMNS, _REGISTERS // (_PARTS * block_rows), triton.next_power_of_2(shape.columns))
    )
    blocks = triton.cdiv(shape.columns, columns)
    skip = weights.skip if isinstance(weights, StateSpace) else weights.decay
    log_width = layer.log.shape[2]
    _recur[(shape.heads * blocks, len(recurrent.spans))](
        *(out, prepared, layer.state, layer.log, x, skip, recurrent.spans, work.firsts, x.stride(0), layer.log_len),
        HEADS=shape.heads, GROUPS=shape.groups, ROWS=shape.rows, COLUMNS=shape.columns, BLOCK_ROWS=block_rows,
        BLOCK=columns, BLOCKS=blocks, WIDTH=shape.width, KEYS_AT=shape.keys_at, QUERIES_AT=shape.queries_at,
        VALUES_AT=shape.values_at, SCALARS_AT=shape.conv_width, LOG_WIDTH=log_width,
        LOG_BLOCK=triton.next_power_of_2(triton.cdiv(log_width, shape.heads * blocks)),
        DELTA=isinstance(weights, GatedDelta), IN_TURNS=isinstance(weights, GatedDelta) and weights.in_turns,
        STAGES=_STAGES, num_warps=1, **_EXACT, **pdl_launch,
    )  # fmt: skip
    return out


def _prepare_tokens(
    prepared: Tensor,
    out: Tensor,
    x: Tensor,
    weights: GatedDelta | StateSpace,
    shape: _Shape,
    layer: StateLayer,
    recurrent: RecurrentBatch,
    work: RecurrentWork,
) -> None:
    is_delta, block = isinstance(weights, GatedDelta), int(triton.next_power_of_2(shape.rows))
    keys = max(1, min(_PIECE // block, int(triton.next_power_of_2(2 * shape.groups))))
    key_pieces = triton.cdiv(2 * shape.groups, keys)
    value_block = min(_PIECE, int(triton.next_power_of_2(out.shape[1])))
    limits = (
        (weights.beta_scale, 0.0, 0.0)
        if isinstance(weights, GatedDelta)
        else (1.0, weights.dt_min, weights.dt_max)
    )
    bias = None if isinstance(weights, GatedDelta) else weights.conv_bias
    num_rows, num_spans = x.shape[0], len(recurrent.spans)
    replayers = min(len(work.span_of) - num_rows, _REPLAYERS)
    _prepare[(num_rows + replayers, key_pieces + triton.cdiv(out.shape[1], value_block))](
        *(prepared, out, x, layer.log, weights.conv, weights.conv if bias is None else bias),
        *(weights.decay, weights.dt_bias, recurrent.spans, work.span_of, work.firsts, num_rows, num_spans),
        *(replayers, x.stride(0), layer.log_len, *limits),
        HEADS=shape.heads, GROUPS=shape.groups, ROWS=shape.rows, BLOCK_ROWS=block, LEVELS=block.bit_length() - 1,
        KEYS=keys, KEY_PIECES=key_pieces, INNER=out.shape[1], BLOCK=value_block, WIDTH=shape.width,
        BLOCK_HEADS=int(triton.next_power_of_2(shape.heads)), FIRST_KEY=min(shape.keys_at, shape.queries_at),
        VALUES_AT=shape.values_at, CONV_WIDTH=shape.conv_width, KERNEL=weights.conv.shape[0],
        LOG_WIDTH=layer.log.shape[2], DELTA=is_delta, HAS_BIAS=bias is not None,
        num_warps=4, **_EXACT, **pdl_launch,
    )  # fmt: skip


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    """log(1 + e^x), by max(x, 0) + log1p(e^-|x|). log1p(e) is log(u) e / (u - 1) with u = 1 + e, which corrects u's
    rounding."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    rest = u - 1.0
    corrected = tl.log(u) * (e / tl.where(rest == 0.0, 1.0, rest))
    return tl.where(x > 0.0, x, 0.0) + tl.where(rest == 0.0, e, corrected)


@triton.jit
def _load_inputs(row, entries, position, start, column, mask, log_len, LOG_WIDTH: tl.constexpr):
    """The inputs of a position in fp32: of the pass, where `row` is that of the span's first token, or of the log."""
    logged = entries + (position + log_len) % log_len * LOG_WIDTH
    past = tl.load(logged + column, mask=mask & (position < start) & (position >= 0), other=0.0)
    new = tl.load(row + column, mask=mask & (position >= start), other=0.0)
    return tl.where(position < start, past, new).to(tl.float32)


@triton.jit
def _convolve(
    row, stride, entries, conv, bias, position, start, column, mask, log_len,
    KERNEL: tl.constexpr, CONV_WIDTH: tl.constexpr, LOG_WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The sum over the window that ends at a position, the oldest one first. row: of this position, in the pass."""
    if HAS_BIAS:
        total = tl.load(bias + column, mask=mask, other=0.0)
    else:
        total = tl.zeros(column.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        back = KERNEL - 1 - tap
        inputs = _load_inputs(
            row - back * stride, entries, position - back, start, column, mask, log_len, LOG_WIDTH
        )
        total = tl.fma(tl.load(conv + tap * CONV_WIDTH + column, mask=mask, other=0.0), inputs, total)
    return total


@triton.jit(
    do_not_specialize=["num_rows", "num_spans", "replayers", "log_len", "factor_scale", "dt_min", "dt_max"]
)
def _prepare(
    prepared, out, x, log, conv, bias, decay, dt_bias, spans, span_of, firsts, num_rows, num_spans, replayers,
    stride, log_len, factor_scale, dt_min, dt_max,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, LEVELS: tl.constexpr,
    KEYS: tl.constexpr, KEY_PIECES: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, FIRST_KEY: tl.constexpr, VALUES_AT: tl.constexpr, CONV_WIDTH: tl.constexpr,
    KERNEL: tl.constexpr, LOG_WIDTH: tl.constexpr, DELTA: tl.constexpr,
    HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One piece of a row, or of some replayed tokens: some heads of k and q (of b and c), or a part of v (x)."""
    pdl_begin(PDL)
    item, piece = tl.program_id(0), tl.program_id(1)
    end = item + 1
    if item >= num_rows:
        end = tl.load(firsts + num_spans)
    while item < end:
        span = tl.load(span_of + item)
        if span >= 0:
            _prepare_token(
                prepared, x, log, conv, bias, decay, dt_bias, spans, firsts, item, span, piece, num_rows, stride,
                log_len, factor_scale, dt_min, dt_max, HEADS, GROUPS, ROWS, BLOCK_ROWS, LEVELS, KEYS, KEY_PIECES, INNER,
                BLOCK, WIDTH, BLOCK_HEADS, FIRST_KEY, VALUES_AT, CONV_WIDTH, KERNEL, LOG_WIDTH, DELTA,
                HAS_BIAS,
            )  # fmt: skip
        elif piece >= KEY_PIECES:  # padding
            value = (piece - KEY_PIECES) * BLOCK + tl.arange(0, BLOCK)
            zeros = tl.zeros([BLOCK], out.dtype.element_ty)
            tl.store(out + item.to(tl.int64) * INNER + value, zeros, mask=value < INNER)
        item += tl.maximum(replayers, 1)


@triton.jit
def _prepare_token(
    prepared, x, log, conv, bias, decay, dt_bias, spans, firsts, item, span, piece, num_rows, stride, log_len,
    factor_scale, dt_min, dt_max,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, LEVELS: tl.constexpr,
    KEYS: tl.constexpr, KEY_PIECES: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, FIRST_KEY: tl.constexpr, VALUES_AT: tl.constexpr, CONV_WIDTH: tl.constexpr,
    KERNEL: tl.constexpr, LOG_WIDTH: tl.constexpr, DELTA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    value = (piece - KEY_PIECES) * BLOCK + tl.arange(0, BLOCK)
    at = spans + span * 6
    slot, start, checkpoint, first_row = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 4)
    position = start + item - first_row
    if item >= num_rows:
        position = checkpoint + item - tl.load(firsts + span)
    row = x + (first_row + position - start).to(tl.int64) * stride
    entries = log + slot.to(tl.int64) * (log_len * LOG_WIDTH)
    prepared += item.to(tl.int64) * WIDTH
    if piece < KEY_PIECES:
        key = piece * KEYS + tl.arange(0, KEYS)[:, None]
        dim = tl.arange(0, BLOCK_ROWS)[None, :]
        column = FIRST_KEY + key * ROWS + dim
        is_key = (key < 2 * GROUPS) & (dim < ROWS)
        keys = _silu(
            _convolve(
                row, stride, entries, conv, bias, position, start, column, is_key, log_len, KERNEL, CONV_WIDTH,
                LOG_WIDTH, HAS_BIAS,
            )
        )  # fmt: skip
        if DELTA:
            keys = tl.where(is_key, keys, 0.0)
            inverse = tl.math.rsqrt(row_sum(keys * keys, LEVELS) + _L2_EPS)
            keys = keys * (inverse * tl.where(key < GROUPS, ROWS**-0.5, 1.0))
        tl.store(prepared + column, keys, mask=is_key)
    else:
        values = _silu(
            _convolve(
                row, stride, entries, conv, bias, position, start, VALUES_AT + value, value < INNER, log_len,
                KERNEL, CONV_WIDTH, LOG_WIDTH, HAS_BIAS,
            )
        )  # fmt: skip
        tl.store(prepared + VALUES_AT + value, values, mask=value < INNER)
    if piece == KEY_PIECES:
        head = tl.arange(0, BLOCK_HEADS)
        is_head = head < HEADS
        first = _load_inputs(row, entries, position, start, CONV_WIDTH + head, is_head, log_len, LOG_WIDTH)
        step = _softplus(first + tl.load(dt_bias + head, mask=is_head, other=0.0))
        if DELTA:
            b = _load_inputs(
                row, entries, position, start, CONV_WIDTH + HEADS + head, is_head, log_len, LOG_WIDTH
            )
            factor = factor_scale / (1.0 + tl.exp(-b))
        else:
            step = tl.where(step < dt_min, dt_min, step)
            step = tl.where(step > dt_max, dt_max, step)
            factor = step
        decays = tl.exp(step * tl.load(decay + head, mask=is_head, other=0.0))
        tl.store(prepared + CONV_WIDTH + head, decays, mask=is_head)
        tl.store(prepared + CONV_WIDTH + HEADS + head, factor, mask=is_head)


# ---- the recurrence ----


@triton.jit
def _load_part(state, row, column, mask, COLUMNS: tl.constexpr):
    return tl.load(state + row * COLUMNS + column, mask=mask, other=0.0)


@triton.jit
def _write_log(
    log,
    x,
    stride,
    slot,
    start,
    first_row,
    end_row,
    column,
    mask,
    log_len,
    LOG_WIDTH: tl.constexpr,
):
    """Write some columns of the span's last tokens, as many as the log holds."""
    entries = log + slot.to(tl.int64) * (log_len * LOG_WIDTH)
    for first in range(tl.maximum(first_row, end_row - log_len), end_row, _LOG_ROWS):
        row = first + tl.arange(0, _LOG_ROWS)[:, None]
        is_in = (row < end_row) & mask[None, :]
        inputs = tl.load(x + row.to(tl.int64) * stride + column[None, :], mask=is_in)
        entry = (start + row - first_row) % log_len
        tl.store(entries + entry * LOG_WIDTH + column[None, :], inputs, mask=is_in)


@triton.jit(do_not_specialize=["log_len"])
def _recur(
    out, prepared, state, log, x, skip, spans, firsts, stride, log_len,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
    KEYS_AT: tl.constexpr, QUERIES_AT: tl.constexpr, VALUES_AT: tl.constexpr, SCALARS_AT: tl.constexpr,
    LOG_WIDTH: tl.constexpr, LOG_BLOCK: tl.constexpr, DELTA: tl.constexpr, IN_TURNS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of columns of a head, over all tokens of a span:

    seen   = S^T k
    added  = factor * (v - decay * seen), or factor * v
    S      = decay * S + k added^T
    result = S^T q
    """
    pdl_launch_next(PDL)  # spans and states were written before this pass's layers
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    at = spans + tl.program_id(1) * 6
    slot, start, checkpoint, store = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    first_row, end_row = tl.load(at + 4), tl.load(at + 5)
    row = tl.arange(0, BLOCK_ROWS)[:, None]
    column = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_columns = column < COLUMNS
    state += (slot.to(tl.int64) * HEADS + head) * (ROWS * COLUMNS)
    row1, row2, row3 = BLOCK_ROWS + row, 2 * BLOCK_ROWS + row, 3 * BLOCK_ROWS + row
    mask0, mask1, mask2, mask3 = row < ROWS, row1 < ROWS, row2 < ROWS, row3 < ROWS
    is_old = in_columns & (checkpoint > 0) & (slot >= 0)
    s0 = _load_part(state, row, column, mask0 & is_old, COLUMNS)
    s1 = _load_part(state, row1, column, mask1 & is_old, COLUMNS)
    s2 = _load_part(state, row2, column, mask2 & is_old, COLUMNS)
    s3 = _load_part(state, row3, column, mask3 & is_old, COLUMNS)
    pdl_wait(PDL)  # in every program: the next kernel waits for this one alone
    if slot < 0:
        return
    part = tl.program_id(0) * LOG_BLOCK + tl.arange(0, LOG_BLOCK)
    _write_log(log, x, stride, slot, start, first_row, end_row, part, part < LOG_WIDTH, log_len, LOG_WIDTH)
    num_replayed = start - checkpoint
    count = num_replayed + end_row - first_row
    replayed = tl.load(firsts + tl.program_id(1))
    group = head % GROUPS if IN_TURNS else head // (HEADS // GROUPS)
    keys = prepared + KEYS_AT + group * ROWS
    queries = prepared + QUERIES_AT + group * ROWS
    values = prepared + VALUES_AT + head * COLUMNS
    scalars = prepared + SCALARS_AT + head
    # From the checkpoint to the next one, which is stored; then the rest.
    is_stored = store > checkpoint
    end = tl.where(is_stored, store - checkpoint, count)
    begin = 0
    for _ in range(tl.where(is_stored & (end < count), 2, 1)):
        for token in tl.range(begin, end, num_stages=STAGES):
            item = tl.where(token < num_replayed, replayed + token, first_row + token - num_replayed)
            offset = item.to(tl.int64) * WIDTH
            k0 = tl.load(keys + offset + row, mask=mask0, other=0.0)
            k1 = tl.load(keys + offset + row1, mask=mask1, other=0.0)
            k2 = tl.load(keys + offset + row2, mask=mask2, other=0.0)
            k3 = tl.load(keys + offset + row3, mask=mask3, other=0.0)
            q0 = tl.load(queries + offset + row, mask=mask0, other=0.0)
            q1 = tl.load(queries + offset + row1, mask=mask1, other=0.0)
            q2 = tl.load(queries + offset + row2, mask=mask2, other=0.0)
            q3 = tl.load(queries + offset + row3, mask=mask3, other=0.0)
            v = tl.load(values + offset + column, mask=in_columns, other=0.0)
            decay = tl.load(scalars + offset)
            factor = tl.load(scalars + offset + HEADS)
            if DELTA:
                seen = tl.sum(tl.fma(s3, k3, tl.fma(s2, k2, tl.fma(s1, k1, s0 * k0))), 0, keep_dims=True)
                added = factor * tl.fma(-decay, seen, v)
            else:
                added = factor * v
            s0 = tl.fma(k0, added, decay * s0)
            s1 = tl.fma(k1, added, decay * s1)
            s2 = tl.fma(k2, added, decay * s2)
            s3 = tl.fma(k3, added, decay * s3)
            result = tl.sum(tl.fma(s3, q3, tl.fma(s2, q2, tl.fma(s1, q1, s0 * q0))), 0, keep_dims=True)
            if not DELTA:
                result = tl.fma(tl.load(skip + head), v, result)
            target = out + (item.to(tl.int64) * HEADS + head) * COLUMNS + column
            tl.store(target, result.to(out.dtype.element_ty), mask=in_columns & (token >= num_replayed))
        if is_stored & (begin == 0):
            tl.store(state + row * COLUMNS + column, s0, mask=mask0 & in_columns)
            tl.store(state + row1 * COLUMNS + column, s1, mask=mask1 & in_columns)
            tl.store(state + row2 * COLUMNS + column, s2, mask=mask2 & in_columns)
            tl.store(state + row3 * COLUMNS + column, s3, mask=mask3 & in_columns)
        begin = end
        end = count


# ---- short convolutions ----


def short_conv(x: Tensor, weights: ShortConv, layer: StateLayer, batch: ForwardBatch) -> Tensor:
    num_rows, width = x.shape[0], weights.conv_width
    recurrent, work = _work(batch, num_rows)
    assert x.stride(1) == 1 and x.shape[1] == 3 * width and layer.log.shape[2] == width
    assert layer.log.is_contiguous() and weights.conv.is_contiguous()
    out = x.new_empty((num_rows, width))
    if not num_rows:
        return out
    block, bias = min(_PIECE, int(triton.next_power_of_2(width))), weights.conv_bias
    _short_conv[(num_rows, triton.cdiv(width, block))](
        *(out, x, layer.log, weights.conv, weights.conv if bias is None else bias),
        *(recurrent.spans, work.span_of, x.stride(0), layer.log_len),
        WIDTH=width, BLOCK=block, KERNEL=weights.conv.shape[0], HAS_BIAS=bias is not None,
        num_warps=4, **_EXACT, **pdl_launch,
    )  # fmt: skip
    _log_products[(num_rows, triton.cdiv(width, block))](
        *(x, layer.log, recurrent.spans, work.span_of, x.stride(0), layer.log_len),
        WIDTH=width, BLOCK=block, num_warps=4, **_EXACT, **pdl_launch,
    )  # fmt: skip
    return out


@triton.jit
def _product(row, column, mask, WIDTH: tl.constexpr):
    """rounded(b * x) of a row: what the log holds."""
    b = tl.load(row + column, mask=mask, other=0.0)
    x = tl.load(row + 2 * WIDTH + column, mask=mask, other=0.0)
    return (b.to(tl.float32) * x.to(tl.float32)).to(b.dtype)


@triton.jit(do_not_specialize=["log_len"])
def _short_conv(
    out, x, log, conv, bias, spans, span_of, stride, log_len,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, KERNEL: tl.constexpr, HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    item = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    span = tl.load(span_of + item)
    target = out + item.to(tl.int64) * WIDTH + column
    if span < 0:  # padding
        tl.store(target, tl.zeros([BLOCK], out.dtype.element_ty), mask=mask)
        return
    at = spans + span * 6
    slot, start, first_row = tl.load(at), tl.load(at + 1), tl.load(at + 4)
    position = start + item - first_row
    row = x + item.to(tl.int64) * stride
    entries = log + slot.to(tl.int64) * (log_len * WIDTH)
    if HAS_BIAS:
        total = tl.load(bias + column, mask=mask, other=0.0)
    else:
        total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(KERNEL):
        past = position - (KERNEL - 1 - tap)
        is_logged = (past < start) & (past >= 0)
        logged = tl.load(
            entries + (past + log_len) % log_len * WIDTH + column, mask=mask & is_logged, other=0.0
        )
        new = _product(row - (KERNEL - 1 - tap) * stride, column, mask & (past >= start), WIDTH)
        inputs = tl.where(past < start, logged, new).to(tl.float32)
        total = tl.fma(tl.load(conv + tap * WIDTH + column, mask=mask, other=0.0), inputs, total)
    c = tl.load(row + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (c * total).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["log_len"])
def _log_products(
    x, log, spans, span_of, stride, log_len, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    pdl_begin(PDL)
    item = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    span = tl.load(span_of + item)
    if span < 0:
        return
    at = spans + span * 6
    slot, start, first_row, end_row = tl.load(at), tl.load(at + 1), tl.load(at + 4), tl.load(at + 5)
    if item < end_row - log_len:
        return
    entry = log + (slot.to(tl.int64) * log_len + (start + item - first_row) % log_len) * WIDTH
    tl.store(entry + column, _product(x + item.to(tl.int64) * stride, column, mask, WIDTH), mask=mask)


# ---- gates ----


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, *, eps: float, group: int, gates_first: bool
) -> Tensor:
    x = x.contiguous()
    rows, width = x.shape
    assert gate.shape == x.shape and gate.stride(1) == 1
    group = group if weight is not None else min(width, _PIECE)
    assert weight is None or (width % group == 0 and weight.numel() in (group, width))
    out = x.new_empty(x.shape)
    if out.numel():
        block = int(triton.next_power_of_2(group))
        _gated_norm[(rows, triton.cdiv(width, group))](
            *(out, x, gate, x if weight is None else weight, eps, gate.stride(0)),
            WIDTH=width, GROUP=group, BLOCK=block, LEVELS=block.bit_length() - 1, NORMED=weight is not None,
            SHARED=weight is not None and weight.numel() == group, GATES_FIRST=gates_first,
            num_warps=max(1, min(4, block // 256)), **_EXACT, **pdl_launch,
        )  # fmt: skip
    return out


@triton.jit
def _gated_norm(
    out, x, gate, weight, eps, stride,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, NORMED: tl.constexpr,
    SHARED: tl.constexpr, GATES_FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUP
    dim = tl.arange(0, BLOCK)[None, :]
    mask = (dim < GROUP) & (first + dim < WIDTH)
    value = tl.load(x + row * WIDTH + first + dim, mask=mask, other=0.0).to(tl.float32)
    silu = _silu(tl.load(gate + row * stride + first + dim, mask=mask, other=0.0).to(tl.float32))
    if GATES_FIRST or not NORMED:
        value = value * silu
    if NORMED:
        inverse = tl.math.rsqrt(tl.fma(row_sum(value * value, LEVELS), 1.0 / GROUP, eps))
        value = value * inverse * tl.load(weight + (dim if SHARED else first + dim), mask=mask, other=0.0)
        if not GATES_FIRST:
            value = value * silu
    tl.store(out + row * WIDTH + first + dim, value.to(out.dtype.element_ty), mask=mask)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    x = x.contiguous()
    rows, width = x.shape
    assert gate.shape == x.shape and gate.stride(1) == 1
    out = x.new_empty(x.shape)
    if out.numel():
        block = min(_PIECE, int(triton.next_power_of_2(width)))
        _sigmoid_mul[(rows, triton.cdiv(width, block))](
            out, x, gate, gate.stride(0), WIDTH=width, BLOCK=block, num_warps=4, **_EXACT, **pdl_launch
        )
    return out


@triton.jit
def _sigmoid_mul(out, x, gate, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    value = tl.load(x + row * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    e = tl.exp(-tl.load(gate + row * stride + column, mask=mask, other=0.0).to(tl.float32))
    tl.store(out + row * WIDTH + column, (value / (1.0 + e)).to(out.dtype.element_ty), mask=mask)
