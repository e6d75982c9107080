"""The next rows of a sequence, as spans of a pass."""

from holdfast.core.grammar import Constraint
from holdfast.core.plan import Span
from holdfast.schedule.sequence import Sequence


def decode_span(seq: Sequence) -> Span:
    """One fast row behind everything known, candidates included."""
    assert seq.computed_len == seq.log.total_len - 1
    want = None if seq.deterministic else seq.request.params.logprobs
    return _span(seq, seq.computed_len, seq.log.total_len, want)


def canonical_span(seq: Sequence, max_rows: int) -> Span:
    """Rows from canonical_len on: prefill, recomputation or a window, all the same thing.

    Every canonical token has its logprob computed, asked for or not: the receipt holds its bits.
    """
    want = seq.request.params.logprobs
    return _span(seq, seq.canonical_len, seq.canonical_len + max_rows, 0 if want is None else want)


def ordinary_span(seq: Sequence, max_rows: int) -> Span:
    """Rows an ordinary sequence still has to compute, candidates included."""
    return _span(seq, seq.computed_len, seq.computed_len + max_rows, seq.request.params.logprobs)


def wanted_span(seq: Sequence, max_rows: int) -> Span:
    """The rows this sequence's answer stands on."""
    return canonical_span(seq, max_rows) if seq.deterministic else ordinary_span(seq, max_rows)


def check_span(seq: Sequence, start: int, stop: int, scratch: tuple[int, ...], num_sampled: int) -> Span:
    """Rows that were computed before, again, into scratch pages at the end of the table."""
    num_pages = seq.table.pages_for(stop)
    pages = seq.table.pages[: num_pages - len(scratch)] + scratch
    ids = seq.log.ids(start, stop)
    return Span(seq.request_id, start, ids, pages, len(ids) - num_sampled, seq.sampling)


def _span(seq: Sequence, start: int, stop: int, logprobs: int | None) -> Span:
    log, request = seq.log, seq.request
    if seq.only_scored:
        stop = min(stop, seq.prefill_len)
        sample_from = stop - start
    else:
        stop = min(stop, log.total_len)
        sample_from = max(0, min(stop, log.committed_len - 1) - start)
    samples = sample_from < stop - start
    constraint = None
    if seq.grammar is not None and samples:
        constraint = Constraint(seq.grammar, log.ids(log.committed_len, stop))
    given = log.ids(seq.scored_len, min(stop + 1, log.prompt_len)) if request.score_from is not None else ()
    return Span(
        seq.request_id,
        start,
        log.ids(start, stop),
        seq.table.pages,
        sample_from,
        seq.sampling,
        logprobs,
        given,
        log.ids(0, start) if samples and seq.sampling.looks_back else (),
        constraint,
    )
