"""The next rows of a sequence, as spans of a pass. What is in flight counts as done; its tokens are UNKNOWN_TOKEN so far."""

from holdfast.core.grammar import Constraint
from holdfast.core.step_plan import UNKNOWN_TOKEN, Span, ThinkRule, ThoughtIds
from holdfast.kv_cache.page_table import PageTable
from holdfast.scheduler.request_state import RequestState

_UNKNOWN_ROW = (UNKNOWN_TOKEN,)


def row_span(seq: RequestState, logprobs: int | None) -> Span:
    """One sampled row behind everything known or in flight, for a sequence whose rows need nothing but their token."""
    flying = seq.flying
    if flying:
        start, ids = flying[-1].stop, _UNKNOWN_ROW
    else:
        start = seq.tokens.total_len - 1
        ids = (seq.tokens.last,)
    return Span(
        seq.request_id,
        start,
        ids,
        seq.page_table.pages,
        0,
        seq.sampling,
        logprobs,
        (),
        (),
        None,
        False,
        seq.request_index,
        seq.rule,
    )


def decode_span(seq: RequestState) -> Span:
    """One fast row behind everything known, candidates included."""
    want = None if seq.deterministic else seq.logprobs
    if not seq.is_synchronous:
        return row_span(seq, want)
    return _span(seq, seq.computed_len, seq.tokens.total_len, want)


def canonical_span(seq: RequestState, max_rows: int) -> Span:
    """Rows from canonical_len on: prefill, recomputation or a window, all the same thing.

    Every canonical token has its logprob computed, asked for or not: the receipt holds its bits.
    """
    start = seq.flying[-1].stop if seq.flying else seq.canonical_len
    return _span(seq, start, start + max_rows, seq.canonical_logprobs)


def ordinary_span(seq: RequestState, max_rows: int) -> Span:
    """Rows an ordinary sequence still has to compute, candidates included."""
    start = seq.flying[-1].stop if seq.flying else seq.computed_len
    return _span(seq, start, start + max_rows, seq.logprobs)


def wanted_span(seq: RequestState, max_rows: int) -> Span:
    """The rows this sequence's answer stands on."""
    return canonical_span(seq, max_rows) if seq.deterministic else ordinary_span(seq, max_rows)


def window_span(seq: RequestState, start: int) -> Span:
    """From the last committed token, at start, over all candidates: those that are known and those in flight."""
    return _span(seq, start, seq.expected_len, seq.canonical_logprobs)


def check_span(
    seq: RequestState, table: PageTable, start: int, stop: int, scratch: tuple[int, ...], num_sampled: int
) -> Span:
    """Rows that were computed before, again, into scratch pages at the end of the table."""
    num_pages = table.pages_for(stop)
    pages = table.pages[: num_pages - len(scratch)] + scratch
    ids = seq.tokens.ids(start, stop)
    rule, guesses = _thinking(seq, start, stop)
    sampled = len(ids) - num_sampled
    return Span(seq.request_id, start, ids, pages, sampled, seq.sampling, rule=rule, guesses=guesses)


def _span(seq: RequestState, start: int, stop: int, logprobs: int | None) -> Span:
    log = seq.tokens
    if seq.thoughts is not None:
        stop = seq.thoughts.reach(start, stop, is_window=not seq.needs_prefill)
    if seq.only_scored:
        stop = min(stop, seq.prefill_len)
        sample_from = stop - start
    else:
        stop = min(stop, seq.expected_len)
        sample_from = max(0, min(stop, log.committed_len - 1) - start)
    ids = log.ids(start, stop)
    if stop > log.total_len:
        ids += _UNKNOWN_ROW * (stop - max(start, log.total_len))
    samples = sample_from < stop - start
    constraint = None
    if seq.grammar is not None and samples:
        constraint = Constraint(seq.grammar, log.ids(log.committed_len, stop))
    return Span(
        seq.request_id,
        start,
        ids,
        seq.page_table.pages,
        sample_from,
        seq.sampling,
        logprobs,
        _given(seq, stop),
        log.ids(0, start) if samples and seq.sampling.needs_history else (),
        constraint,
        False,
        seq.request_index,
        *_thinking(seq, start, stop),
    )


def _thinking(seq: RequestState, start: int, stop: int) -> tuple[ThinkRule | None, tuple[ThoughtIds, ...]]:
    """How these rows are thought about, and what is taken for granted among them."""
    if seq.thoughts is None:
        return None, ()
    return seq.thoughts.rule, seq.thoughts.guesses(start, stop)


def _given(seq: RequestState, stop: int) -> tuple[int, ...]:
    """The prompt's tokens behind these rows whose logprobs are asked for and are not in flight yet."""
    if seq.request.score_from is None:
        return ()
    scored_len = seq.scored_len + sum(len(span.scored_ids) for span in seq.flying)
    return seq.tokens.ids(scored_len, min(stop + 1, seq.tokens.prompt_len))
