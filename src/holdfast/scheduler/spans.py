"""The next tokens of a request, as spans of a pass. What is in flight counts as computed; its
tokens are UNKNOWN_TOKEN."""

from holdfast.core.step_plan import UNKNOWN_TOKEN, Span
from holdfast.core.structured_output import Constraint
from holdfast.kv_cache.page_table import PageTable
from holdfast.scheduler.request_state import RequestState

_UNKNOWN_TOKENS = (UNKNOWN_TOKEN,)


def next_token_span(state: RequestState, logprobs: int | None) -> Span:
    """Return a span that samples one token after everything known or in flight. For a request whose
    tokens the host need not know."""
    in_flight = state.in_flight.spans
    if in_flight:
        start, token_ids = in_flight[-1].stop, _UNKNOWN_TOKENS
    else:
        tokens = state.tokens
        start, token_ids = tokens.total_len - 1, (tokens.last,)
    extra = None if state.extension is None else state.extension.guess(start, start + 1)
    return _new_span(state, start, token_ids, sample_from=0, logprobs=logprobs, extra=extra)


def candidate_span(state: RequestState) -> Span:
    """Return a span with one fast token of a deterministic request, after everything known. It proposes
    the next candidate."""
    if not state.needs_known_tokens:
        return next_token_span(state, None)
    return _span(state, state.computed_len, state.tokens.total_len, None)


def canonical_span(state: RequestState, max_tokens: int) -> Span:
    """Return up to `max_tokens` tokens from canonical_len on: prefill, recomputation and windows are the
    same thing.

    Every canonical token gets its logprob, because the receipt holds its bits.
    """
    in_flight = state.in_flight.spans
    start = in_flight[-1].stop if in_flight else state.canonical_len
    return _span(state, start, start + max_tokens, state.canonical_logprobs)


def ordinary_span(state: RequestState, max_tokens: int) -> Span:
    """Return up to `max_tokens` tokens from computed_len on, candidates included."""
    in_flight = state.in_flight.spans
    start = in_flight[-1].stop if in_flight else state.computed_len
    return _span(state, start, start + max_tokens, state.logprobs)


def next_span(state: RequestState, max_tokens: int) -> Span:
    """Return the next tokens that the request's answer depends on."""
    return canonical_span(state, max_tokens) if state.deterministic else ordinary_span(state, max_tokens)


def window_span(state: RequestState, start: int) -> Span:
    """Return the tokens from the last committed one, at `start`, to the last candidate, known or in
    flight."""
    return _span(state, start, state.expected_len, state.canonical_logprobs)


def check_span(
    state: RequestState,
    page_table: PageTable,
    *,
    start: int,
    stop: int,
    scratch_pages: tuple[int, ...],
    num_sampled: int,
) -> Span:
    """Return tokens that were computed before, to be computed again.

    page_table       of the first computation
    start, stop      positions of the tokens
    scratch_pages    where their KV is written, in place of the last pages of the table
    num_sampled      the last tokens, whose logits are compared
    """
    num_pages = page_table.pages_for(stop)
    token_ids = state.tokens.ids(start, stop)
    return Span(
        request_id=state.request_id,
        start=start,
        token_ids=token_ids,
        pages=page_table.pages[: num_pages - len(scratch_pages)] + scratch_pages,
        sample_from=len(token_ids) - num_sampled,
        sampling=state.sampling,
        extra=None if state.extension is None else state.extension.guess(start, stop),
    )


def _span(state: RequestState, start: int, stop: int, logprobs: int | None) -> Span:
    tokens = state.tokens
    extension = state.extension
    if extension is not None:
        stop = extension.limit(start, stop, is_window=not state.needs_prefill)
    if state.only_scored:
        stop = min(stop, state.prefill_len)
        sample_from = stop - start
    else:
        stop = min(stop, state.expected_len)
        if state.score_from is not None and tokens.num_output and start < tokens.prompt_len - 1:
            stop = min(stop, tokens.prompt_len - 1)  # the scored tokens are the last before sample_from
        sample_from = max(0, min(stop, tokens.committed_len - 1) - start)
    token_ids = tokens.ids(start, stop)
    if stop > tokens.total_len:
        token_ids += _UNKNOWN_TOKENS * (stop - max(start, tokens.total_len))
    samples = sample_from < stop - start
    constraint = None
    if state.grammar is not None and samples:
        constraint = Constraint(state.grammar, tokens.ids(tokens.committed_len, stop))
    return _new_span(
        state,
        start,
        token_ids,
        sample_from=sample_from,
        logprobs=logprobs,
        scored_ids=_scored_ids(state, stop),
        history=tokens.ids(0, start)
        if samples and state.sampling.needs_history and state.needs_known_tokens
        else (),
        constraint=constraint,
        extra=None if extension is None else extension.guess(start, stop),
        num_pooled=0 if state.pooled is None else state.pooled.num_pooled(start, stop, state.in_flight.spans),
    )


def _new_span(
    state: RequestState,
    start: int,
    token_ids: tuple[int, ...],
    *,
    sample_from: int,
    logprobs: int | None,
    scored_ids: tuple[int, ...] = (),
    history: tuple[int, ...] = (),
    constraint: Constraint | None = None,
    extra: object = None,
    num_pooled: int = 0,
) -> Span:
    # By position: a class called with keywords takes twice as long, and each decode token needs a span.
    return Span(
        state.request_id,
        start,
        token_ids,
        state.page_table.pages,
        sample_from,
        state.sampling,
        logprobs,
        scored_ids,
        history,
        constraint,
        False,  # with_checksums
        state.request_index,
        extra,
        num_pooled,
    )


def _scored_ids(state: RequestState, stop: int) -> tuple[int, ...]:
    """Return the tokens of the prompt up to position `stop` whose logprobs the client asks for and that
    are not in flight yet."""
    if state.score_from is None:
        return ()
    scored_len = state.scored_len + sum(len(span.scored_ids) for span in state.in_flight.spans)
    return state.tokens.ids(scored_len, min(stop + 1, state.tokens.prompt_len))
