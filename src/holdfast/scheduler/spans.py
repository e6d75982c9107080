"""The next tokens of a request, as spans of a pass. What is in flight counts as computed; its
tokens are UNKNOWN_TOKEN."""

from holdfast.core.step_plan import UNKNOWN_TOKEN, Span
from holdfast.core.structured_output import Constraint
from holdfast.scheduler.request_state import RequestState

_UNKNOWN_TOKENS = (UNKNOWN_TOKEN,)


def next_token_span(state: RequestState, logprobs: int | None) -> Span:
    """Return one token after everything known or in flight, whose id the host need not know."""
    in_flight = state.in_flight.spans
    if in_flight:
        start, token_ids = in_flight[-1].stop, _UNKNOWN_TOKENS
    else:
        tokens = state.tokens
        start, token_ids = tokens.total_len - 1, (tokens.last,)
    extra = None if state.extension is None else state.extension.guess(start, start + 1)
    recurrent = None
    if state.states is not None:
        certain_len = 0 if state.deterministic and logprobs is None else start + 1
        recurrent = state.states.span(start, start + 1, certain_len)
    # By position: a class called with keywords takes twice as long, and each decode token needs a span.
    return Span(
        state.request_id,
        start,
        token_ids,
        state.page_table.pages,
        0,
        state.sampling,
        logprobs,
        (),
        (),
        None,
        False,
        state.request_index,
        extra,
        0,
        0,
        recurrent,
    )


def candidate_span(state: RequestState) -> Span:
    """Return one fast token of a deterministic request, which proposes the next candidate."""
    if not state.needs_known_tokens:
        return next_token_span(state, None)
    return _span(state, state.computed_len, state.tokens.total_len, None, certain_len=0)


def next_span(state: RequestState, max_tokens: int) -> Span:
    """Return up to `max_tokens` of the next tokens that the request's answer depends on: prefill,
    recomputation, a window, or a token to decode."""
    start, tokens = state.next_start, state.tokens
    certain_len = tokens.committed_len if tokens.num_candidates else None
    return _span(state, start, start + max_tokens, state.logprobs, certain_len=certain_len)


def window_span(state: RequestState, start: int) -> Span:
    """Return the tokens from the last committed one, at `start`, to the last candidate."""
    return _span(*(state, start, state.expected_len, state.logprobs), certain_len=state.tokens.committed_len)


def _span(
    state: RequestState, start: int, stop: int, logprobs: int | None, *, certain_len: int | None
) -> Span:
    """certain_len: as in `StateCursor.span`; None: all tokens of the span are certain."""
    tokens = state.tokens
    extension = state.extension
    if extension is not None:
        stop = extension.limit(start, stop, is_window=not state.needs_prefill)
    if state.states is not None and certain_len is None:
        stop = state.states.limit(start, min(stop, state.expected_len))
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
    has_history = samples and state.sampling.needs_history and state.needs_known_tokens
    in_flight = state.in_flight.spans
    return Span(
        state.request_id,
        start,
        token_ids,
        state.page_table.pages,
        sample_from,
        state.sampling,
        logprobs,
        _scored_ids(state, stop),
        tokens.ids(0, start) if has_history else (),
        constraint,
        request_index=state.request_index,
        extra=None if extension is None else extension.guess(start, stop),
        num_pooled=0 if state.pooled is None else state.pooled.num_pooled(start, stop, in_flight),
        num_cached=max(0, state.valid_len - start),
        state=None
        if state.states is None
        else state.states.span(start, stop, stop if certain_len is None else certain_len),
    )


def _scored_ids(state: RequestState, stop: int) -> tuple[int, ...]:
    """Return the prompt's tokens up to `stop` whose logprobs are asked for and that are not in flight."""
    if state.score_from is None:
        return ()
    scored_len = state.known_scores_len + sum(len(span.scored_ids) for span in state.in_flight.spans)
    return state.tokens.ids(scored_len, min(stop + 1, state.tokens.prompt_len))
