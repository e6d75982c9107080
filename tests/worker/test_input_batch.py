"""From spans to the input batch: tokens, positions, slots, page table, padding, tiles, ring slots."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import UNKNOWN_TOKEN, Pass, PassKind, Sampling, Span, SpanState
from holdfast.numerics.attention_tiles import list_decode_tiles
from holdfast.worker.input_batch import (
    _MAX_ROWS,
    InputBatch,
    PageTableCache,
    fill_buffer,
    layout_of,
    make_input_batch,
    num_replayed,
    send_batch,
)

SAMPLING = Sampling(SamplingParams(), 0, 4)
CPU = torch.device("cpu")
RING_ARRAYS = ("ring_read_indices", "ring_read_slots", "ring_write_indices", "ring_write_slots")
# Three spans over pages of four slots.
SPANS = (
    Span(1, 8, (11, 12, 13, 14), (9, 8, 7), 3, SAMPLING),
    Span(2, 37, (21,), tuple(range(20, 30)), 0, SAMPLING),
    Span(3, 3, (31, 32), (5, 2), 2, SAMPLING),
)


def batch(*spans: Span) -> InputBatch:
    return make_input_batch(Pass(PassKind.FAST, spans, sum(span.num_tokens for span in spans)), 4)


def test_a_scored_token_is_one_of_its_own_span() -> None:
    with pytest.raises(AssertionError, match="one of its own span"):
        batch(Span(4, 9, (1, 2, 3), (0, 1, 2), 2, SAMPLING, scored_ids=(2, 3, 4)))


def test_pooled_tokens_come_after_scored_and_before_sampled_ones() -> None:
    scored = Span(4, 9, (1, 2, 3, 4), (0, 1, 2, 3), 3, SAMPLING, scored_ids=(3, 4))
    pooled = Span(5, 9, (1, 2, 3), (0, 1, 2), 3, SAMPLING, num_pooled=2)
    found = batch(*SPANS, pooled, scored)
    start = batch(*SPANS).num_tokens
    assert (found.num_scored, found.num_pooled) == (2, 2)
    assert found.logits_indices[:4].tolist() == [start + 4, start + 5, start + 1, start + 2]
    assert not batch(pooled).logits_come_first


def test_logits_come_first_only_if_they_are_a_prefix() -> None:
    decode = [Span(number, 5, (number,), (number, 9), 0, SAMPLING) for number in range(3)]
    prompt = Span(4, 0, (1, 2), (7,), 2, SAMPLING)
    assert batch(*decode).logits_come_first
    assert batch(*decode, prompt).logits_come_first
    assert not batch(prompt, *decode).logits_come_first
    assert not batch(Span(4, 9, (1, 2), (0, 1, 2), 1, SAMPLING, scored_ids=(3,))).logits_come_first


def test_tile_height_is_chosen_by_span_and_short_tiles_come_first() -> None:
    found = make_input_batch(Pass(PassKind.FAST, SPANS, 7), 4, lambda span_len: 3 if span_len > 2 else 2)
    assert found.tiles[:, :3].tolist() == [[4, 1, 10], [5, 2, 20], [0, 3, 0], [3, 1, 0]]
    assert found.num_short_tiles == 2
    without = make_input_batch(Pass(PassKind.FAST, SPANS, 7), 4, lambda span_len: 0)
    assert send_batch(without, 7, CPU).forward.tiles is None


def random_spans(rng: random.Random) -> tuple[Span, ...]:
    spans = []
    for number in range(rng.randint(1, 9)):
        start, count = rng.randrange(200), rng.choice([1, 1, 1, 2, 7, 90])
        pages = tuple(rng.randrange(1000) for _ in range((start + count) // 4 + rng.randint(1, 3)))
        sample_from = rng.randint(0, count)
        request_index = rng.choice([-1, number])
        tokens = [
            rng.choice([UNKNOWN_TOKEN, 5, 6] if request_index >= 0 else [5, 6, 7]) for _ in range(count)
        ]
        given = tuple(range(rng.choice([0, 0, sample_from])))
        spans.append(
            Span(
                number,
                start,
                tuple(tokens),
                pages,
                sample_from,
                SAMPLING,
                scored_ids=given,
                request_index=request_index,
            )
        )
    return tuple(spans)


def expected_arrays(spans: tuple[Span, ...], height: int) -> dict[str, Any]:
    """What `make_input_batch` does, token by token."""
    width = max(len(span.pages) for span in spans)
    found: dict[str, list[Any]] = {
        name: [] for name in ("token_ids", "positions", "slots", "tiles", "page_table")
    }
    found |= {name: [] for name in RING_ARRAYS}
    scored, sampled, starts = [], [], [0]
    for index, span in enumerate(spans):
        found["page_table"].append([*span.pages] + [0] * (width - len(span.pages)))
        for place, token_id in enumerate(span.token_ids):
            row, at = len(found["token_ids"]), span.start + place
            if place % height == 0:
                found["tiles"].append([row, min(height, span.num_tokens - place), index * width, 0, 0, 0])
            if token_id == UNKNOWN_TOKEN:
                found["ring_read_indices"].append(row)
                found["ring_read_slots"].append(span.request_index * 64 + at % 64)
            if span.sample_from - len(span.scored_ids) <= place < span.sample_from:
                scored.append(row)
            if place >= span.sample_from:
                if span.request_index >= 0 and span.num_tokens - place <= 64:
                    found["ring_write_indices"].append(len(sampled))
                    found["ring_write_slots"].append(span.request_index * 64 + (at + 1) % 64)
                sampled.append(row)
            found["token_ids"].append(token_id)
            found["positions"].append(at)
            found["slots"].append(span.pages[at // 4] * 4 + at % 4)
        starts.append(len(found["token_ids"]))
    return {**found, "span_starts": starts, "logits_indices": scored + sampled}


@pytest.mark.parametrize("seed", range(30))
def test_input_batch_equals_a_token_by_token_construction(seed: int) -> None:
    rng = random.Random(seed)
    pages = PageTableCache()
    for _ in range(5):
        spans, height = random_spans(rng), rng.choice([1, 3, 16])
        found = make_input_batch(
            Pass(PassKind.FAST, spans, 0), 4, lambda longest, height=height: height, pages
        )
        expected = expected_arrays(spans, height)
        for name, values in expected.items():
            assert getattr(found, name).tolist() == values, name
        assert len(set(found.ring_write_slots.tolist())) == len(found.ring_write_slots), (
            "two writes to one slot"
        )
        assert found.num_request_indices == max(span.request_index for span in spans) + 1
        padded = found.num_tokens + rng.randint(0, 5)
        sent = send_batch(found, padded, CPU)
        assert sent.forward.token_ids.tolist() == expected["token_ids"] + [0] * (padded - found.num_tokens)
        assert sent.forward.slots.tolist() == expected["slots"] + [-1] * (padded - found.num_tokens)
        for name in ("span_starts", "page_table", "tiles"):
            assert getattr(sent.forward, name).tolist() == expected[name], name
        for name in ("logits_indices", *RING_ARRAYS):
            assert getattr(sent, name).tolist() == expected[name], name


@pytest.mark.parametrize("seed", range(20))
def test_tokens_share_a_tile_only_with_the_same_pages_before_them(seed: int) -> None:
    rng = random.Random(seed)
    page_size, split_pages, most = 4, 2, rng.choice([2, 4, 16])
    kinds = [[rng.randrange(99) for _ in range(12)] for _ in range(2)]
    rows = []
    for _ in range(rng.randint(1, 40)):
        kept = rng.randrange(13)
        rows.append(rng.choice(kinds)[:kept] + [rng.randrange(100, 999) for _ in range(13 - kept)])
    table = np.array(rows, np.int32)
    positions = np.array([rng.randrange(52) for _ in rows])
    tiles = list_decode_tiles(positions, table, most, page_size=page_size, split_pages=split_pages)
    first, num_read, num_alone = 0, 0, int((positions // 8 + 1).sum())
    for row, count, page, stride, common, own in tiles.tolist():
        assert row == first and 1 <= count <= most and page == row * 13
        first += count
        last = int(positions[row : row + count].max()) // 8
        num_read += common + count * own if count > 1 else last + 1
        if count > 1:
            assert stride == 13 and common > 0 and common + own == last + 1
            assert (positions[row : row + count] >= 8 * common - 1).all()
            assert (table[row : row + count, : 2 * common] == table[row, : 2 * common]).all()
    assert first == len(rows) and num_read <= num_alone


def test_reused_buffer_is_overwritten_with_padding() -> None:
    found = batch(*SPANS)
    layout = layout_of(found, 12, (12, 0))
    words = np.full(layout.num_words, -7)
    fill_buffer(words, found, layout)
    rows = layout.forward_batch(torch.from_numpy(words))
    assert rows.tiles is not None
    assert rows.tiles.tolist() == [[0] * 6] * 12
    assert rows.slots.tolist()[7:] == [-1] * 5


def test_unknown_token_needs_a_request_index() -> None:
    with pytest.raises(AssertionError, match="request index"):
        batch(Span(1, 3, (UNKNOWN_TOKEN,), (0,), 0, SAMPLING))


# Page tables


def test_tables_are_right_after_any_history() -> None:
    rng = random.Random(3)
    cache = PageTableCache()
    tables = [(1, 2), (1, 2, 3), (7,) * 300, (), (4,)]
    for step in range(200):
        asked = [rng.choice(tables) for _ in range(rng.randint(1, 200))]
        tables.append(tuple(rng.randrange(9) for _ in range(rng.randint(1, 30))))
        if step % 50 == 0:
            tables += [(step, number) for number in range(_MAX_ROWS // 3)]
        width = max(map(len, asked))
        found = cache.table(asked)
        assert found.tolist() == [[*pages] + [0] * (width - len(pages)) for pages in asked]


def test_table_with_more_rows_than_the_cache() -> None:
    asked = [(number, number + 1) for number in range(2 * _MAX_ROWS)]
    cache = PageTableCache()
    for _ in range(2):
        assert cache.table(asked).tolist() == [list(pages) for pages in asked]


def test_table_is_a_copy() -> None:
    cache = PageTableCache()
    cache.table([(1, 2)])[:] = 9
    assert cache.table([(1, 2)]).tolist() == [[1, 2]]


def test_recurrent_states_are_laid_out_before_the_page_table() -> None:
    """Their place does not depend on the pages; what a graph has room for beyond the spans is no span."""
    sampling = Sampling(SamplingParams(), 0, 0)
    spans = (
        Span(1, 7, (5, 6, 7), (3,), 0, sampling, state=SpanState(4, 5, 8)),
        Span(2, 0, (9,), (1,), 0, sampling),
    )
    batch = make_input_batch(Pass(PassKind.FAST, spans, 4), 16)
    assert batch.states is not None
    assert batch.states.tolist() == [[4, 7, 5, 8, 0, 3], [-1, 0, 0, 0, 0, 0]]
    layout = layout_of(batch, 8, num_states=3)
    words = np.zeros(layout.num_words, np.int64)
    fill_buffer(words, batch, layout)
    forward = layout.forward_batch(torch.from_numpy(words), num_replayed(batch.states))
    assert forward.recurrent is not None
    assert forward.recurrent.spans.tolist() == [*batch.states.tolist(), [-1] * 6]
    assert forward.recurrent.num_replayed == 2
    assert forward.page_table.tolist() == batch.page_table.tolist()
