"""Batches of logits slices: of limited size, complete and in order."""

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampling, Span
from holdfast.worker.logits import Masks, batch_slices

SAMPLING = Sampling(SamplingParams(), 0, 4)


def chunk(start: int, count: int, sample_from: int) -> Span:
    return Span(start, start, tuple(range(count)), (0,), sample_from, SAMPLING)


def test_batches_keep_token_order_and_split_spans() -> None:
    spans = (chunk(8, 4, 3), chunk(0, 5, 5), chunk(20, 9, 2), chunk(40, 1, 0))
    masks: list[Masks] = [(), (), tuple(bytes([row]) for row in range(2, 9)), ()]
    expected = [(8, 3)] + [(20, row) for row in range(2, 9)] + [(40, 0)]
    for most in range(1, 12):
        slices = list(batch_slices(spans, masks, most))
        sizes = [sum(part.num_tokens for part in parts) for parts in slices]
        assert sizes[:-1] == [most] * (len(sizes) - 1)
        assert 0 < sizes[-1] <= most
        rows = [
            (part.span.start, row)
            for parts in slices
            for part in parts
            for row in range(part.first, part.stop)
        ]
        assert rows == expected
        for part in (part for parts in slices for part in parts):
            assert part.first_position == part.span.start + part.first + 1
            cut = tuple(bytes([row]) for row in range(part.first, part.stop))
            assert part.masks == (cut if part.span.start == 20 else ())


def test_span_without_sampled_tokens_gives_no_slice() -> None:
    assert list(batch_slices((chunk(0, 5, 5),), [()], 64)) == []
