"""From the spans of a pass to its rows as tensors."""

from collections.abc import Sequence

import numpy as np
import torch

from holdfast.arithmetic.rows import Rows
from holdfast.core.plan import Pass, Span


def rows_of(one: Pass, page_size: int) -> Rows:
    """The pass's rows in span order, padded behind them."""
    spans, total = one.spans, one.padded_rows
    token_ids = np.zeros(total, np.int64)
    positions = np.zeros(total, np.int64)
    slots = np.full(total, -1, np.int64)
    starts = np.zeros(len(spans) + 1, np.int32)
    table = np.zeros((len(spans), max(len(span.pages) for span in spans)), np.int32)
    at = 0
    for index, span in enumerate(spans):
        stop = at + span.num_rows
        table[index, : len(span.pages)] = span.pages
        token_ids[at:stop] = span.token_ids
        positions[at:stop] = span_positions = np.arange(span.start, span.stop)
        slots[at:stop] = (
            table[index, span_positions // page_size].astype(np.int64) * page_size
            + span_positions % page_size
        )
        starts[index + 1] = at = stop
    return Rows(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        span_starts=torch.from_numpy(starts),
        page_table=torch.from_numpy(table),
    )


def given_rows(spans: Sequence[Span]) -> list[int]:
    """Which rows of the pass stand before a given token, in order of spans."""
    chosen: list[int] = []
    at = 0
    for span in spans:
        assert len(span.given) <= span.sample_from, "a given token stands behind a row of its own span"
        chosen.extend(range(at + span.sample_from - len(span.given), at + span.sample_from))
        at += span.num_rows
    return chosen


def sampled_rows(spans: Sequence[Span]) -> list[int]:
    """Which rows of the pass give a token, in order of spans."""
    chosen: list[int] = []
    at = 0
    for span in spans:
        chosen.extend(range(at + span.sample_from, at + span.num_rows))
        at += span.num_rows
    return chosen
