"""From spans to rows: tokens, positions, slots, page table, padding."""

from holdfast.core.params import SamplingParams
from holdfast.core.plan import Pass, PassKind, Sampling, Span
from holdfast.run.batch import given_rows, rows_of, sampled_rows

HOW = Sampling(SamplingParams(), 0, 4)
# Three spans over pages of four slots, as in the picture of `rows.py`.
SPANS = (
    Span(1, 8, (11, 12, 13, 14), (9, 8, 7), 3, HOW),
    Span(2, 37, (21,), tuple(range(20, 30)), 0, HOW),
    Span(3, 3, (31, 32), (5, 2), 2, HOW),
)


def test_rows_in_span_order_with_padding_behind() -> None:
    rows = rows_of(Pass(PassKind.CANONICAL, SPANS, 10), page_size=4)
    assert rows.num_rows == 10
    assert rows.token_ids.tolist() == [11, 12, 13, 14, 21, 31, 32, 0, 0, 0]
    assert rows.positions.tolist() == [8, 9, 10, 11, 37, 3, 4, 0, 0, 0]
    assert rows.span_starts.tolist() == [0, 4, 5, 7]


def test_a_slot_is_its_page_and_offset_and_padding_has_none() -> None:
    rows = rows_of(Pass(PassKind.FAST, SPANS, 9), page_size=4)
    page_37, page_3, page_4 = 29, 5, 2
    expected = [28, 29, 30, 31, page_37 * 4 + 1, page_3 * 4 + 3, page_4 * 4, -1, -1]
    assert rows.slots.tolist() == expected


def test_the_page_table_is_ragged_with_zeros_behind() -> None:
    table = rows_of(Pass(PassKind.FAST, SPANS, 7), page_size=4).page_table
    assert table.shape == (3, 10)
    assert table[0].tolist() == [9, 8, 7] + [0] * 7
    assert table[1].tolist() == list(range(20, 30))
    assert table[2].tolist() == [5, 2] + [0] * 8


def test_which_rows_give_a_token() -> None:
    assert sampled_rows(SPANS) == [3, 4]
    window = Span(4, 9, (1, 2, 3), (0, 1, 2), 0, HOW)
    assert sampled_rows((*SPANS, window)) == [3, 4, 7, 8, 9]
    assert sampled_rows(SPANS[2:]) == []


def test_given_tokens_stand_behind_the_rows_before_the_sampled_ones() -> None:
    scored = Span(4, 9, (1, 2, 3, 4), (0, 1, 2), 3, HOW, given=(3, 4))
    whole = Span(4, 9, (1, 2, 3), (0, 1, 2), 3, HOW, given=(2, 3, 4))
    assert given_rows((*SPANS, scored, SPANS[1], whole)) == [8, 9, 12, 13, 14]
    assert given_rows(SPANS) == []
