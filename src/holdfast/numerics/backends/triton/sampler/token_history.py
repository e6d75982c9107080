"""The token ids of all KV slots, and the logits processors that read them.

    _count_tokens [rows, blocks]   counts [group, V] of the tokens before each row
    _penalise     [rows, blocks]   for the same tokens again: take the count, which leaves 0, and change the logit

A token that occurs twice finds its count taken the second time. So each logit is changed once, and
the counts are all 0 again. Every operation is rounded to fp32 by itself, so the bits are those of
`worker/logits_processors/penalties.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.sampler.logits import INFINITY
from holdfast.numerics.sampling import BadWordBatch, PenaltyBatch

_GROUP = 64  # rows counted at once; limits the memory of the counts
_BLOCK = 1024  # positions per program
_IN_PROMPT = tl.constexpr(1 << 30)  # of a count: the token occurs in the prompt


class DeviceTokenHistory:
    """A `numerics.sampling.TokenHistory`."""

    def __init__(self, num_pages: int, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        # The last one stands for slot -1. Nothing reads it.
        self._tokens = torch.zeros(num_pages * page_size + 1, dtype=torch.int64, device=device)
        self._counts: Tensor | None = None  # int32 [_GROUP, V], zeros between calls

    def write(self, slots: Tensor, token_ids: Tensor) -> None:
        self._tokens.index_put_((slots,), token_ids)

    def penalise(self, logits: Tensor, batch: PenaltyBatch) -> None:
        vocabulary, before = logits.shape[1], batch.before
        counts, self._counts = self._counts, None  # if a launch fails, they are not zeros any more
        if counts is None or counts.shape[1] != vocabulary:
            counts = torch.zeros((_GROUP, vocabulary), dtype=torch.int32, device=logits.device)
        width, blocks = before.page_table.shape[1], triton.cdiv(before.max_end, _BLOCK)
        for start in range(0, len(batch.rows), _GROUP):
            rows = min(_GROUP, len(batch.rows) - start)
            history = (
                *(self._tokens, before.page_table, before.ends, before.table_rows, batch.prompt_lens),
                *(width, start),
            )
            sizes = {"V": vocabulary, "PAGE": self._page_size, "BLOCK": _BLOCK, "num_warps": 4}
            _count_tokens[(rows, blocks)](counts, *history, **sizes)
            _penalise[(rows, blocks)](
                *(logits, counts, *history, batch.rows, batch.repetition, batch.frequency, batch.presence),
                **sizes, enable_fp_fusion=False,
            )  # fmt: skip
        self._counts = counts

    def mask_bad_words(self, logits: Tensor, batch: BadWordBatch) -> None:
        before = batch.before
        longest, width = batch.words.shape[1], before.page_table.shape[1]
        _mask_bad_words[(len(batch.rows),)](
            *(logits, self._tokens, before.page_table, before.ends, before.table_rows),
            *(batch.rows, batch.words, batch.lengths, batch.last_ids, width, longest),
            V=logits.shape[1], PAGE=self._page_size, SLOTS=int(triton.next_power_of_2(longest)), num_warps=1,
        )  # fmt: skip


@triton.jit
def _load_tokens(tokens, page_table, table_row, position, mask, width, PAGE: tl.constexpr):
    place = table_row.to(tl.int64) * width + position // PAGE
    page = tl.load(page_table + place, mask=mask, other=0).to(tl.int64)
    token = tl.load(tokens + page * PAGE + position % PAGE, mask=mask, other=0)
    return tl.where(mask, tl.maximum(token, 0), -1)  # NO_TOKEN is token 0, as for the embedding


@triton.jit(do_not_specialize=["width", "start"])
def _count_tokens(
    counts, tokens, page_table, ends, table_rows, prompt_lens, width, start,
    V: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    end, prompt_len = tl.load(ends + start + row), tl.load(prompt_lens + start + row)
    if block * BLOCK < end:
        position = block * BLOCK + tl.arange(0, BLOCK)
        table_row = tl.load(table_rows + start + row)
        token = _load_tokens(tokens, page_table, table_row, position, position < end, width, PAGE)
        is_real, place = (token >= 0) & (token < V), counts + row.to(tl.int64) * V + token
        tl.atomic_or(place, _IN_PROMPT, mask=is_real & (position < prompt_len), sem="relaxed")
        tl.atomic_add(place, 1, mask=is_real & (position >= prompt_len), sem="relaxed")


@triton.jit(do_not_specialize=["width", "start"])
def _penalise(
    logits, counts, tokens, page_table, ends, table_rows, prompt_lens, width, start,
    rows, repetitions, frequencies, presences, V: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    end = tl.load(ends + start + row)
    if block * BLOCK < end:
        position = block * BLOCK + tl.arange(0, BLOCK)
        table_row = tl.load(table_rows + start + row)
        token = _load_tokens(tokens, page_table, table_row, position, position < end, width, PAGE)
        is_real = (token >= 0) & (token < V)
        found = tl.atomic_xchg(counts + row.to(tl.int64) * V + token, 0, mask=is_real, sem="relaxed")
        is_first = is_real & (found != 0)
        count = (found & (_IN_PROMPT - 1)).to(tl.float32)
        place = logits + tl.load(rows + start + row).to(tl.int64) * V + token
        value = tl.load(place, mask=is_first, other=0.0)
        repetition = tl.load(repetitions + start + row) + tl.zeros_like(value)
        value = tl.where(value > 0.0, tl.math.div_rn(value, repetition), value * repetition)
        value = value - tl.load(frequencies + start + row) * count
        value = tl.where(count > 0.0, value - tl.load(presences + start + row), value)
        tl.store(place, value, mask=is_first)


@triton.jit(do_not_specialize=["width", "longest"])
def _mask_bad_words(
    logits, tokens, page_table, ends, table_rows, rows, words, lengths, last_ids, width, longest,
    V: tl.constexpr, PAGE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    end, length, last_id = tl.load(ends + pair), tl.load(lengths + pair), tl.load(last_ids + pair)
    slot = tl.arange(0, SLOTS)
    position = end - longest + slot
    is_asked = (slot < longest) & (slot >= longest - length)
    is_known = is_asked & (position >= 0)
    table_row = tl.load(table_rows + pair)
    token = _load_tokens(tokens, page_table, table_row, position, is_known, width, PAGE)
    word = tl.load(words + pair.to(tl.int64) * longest + slot, mask=is_asked, other=0)
    num_same = tl.sum((is_known & (token == word.to(tl.int64))).to(tl.int32), 0)
    if (num_same == length) & (last_id < V):
        tl.store(logits + tl.load(rows + pair).to(tl.int64) * V + last_id, -INFINITY)
