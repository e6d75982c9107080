"""What the result of a pass changes in its request: tokens, lengths, pages, counts, the end of the answer."""

from holdfast.core.step_plan import Sampled
from holdfast.errors import AnswerFailed, GuaranteeLost, NotFinite, NoTokenAllowed
from holdfast.scheduler.policy import adapt_window
from holdfast.scheduler.request_state import Phase, RequestState
from holdfast.scheduler.verification import SpanOutcome

_FP16 = "if the model runs in fp16, load it with dtype bf16 or fp32"


def apply(state: RequestState, outcome: SpanOutcome) -> tuple[tuple[Sampled, ...], tuple[object, ...]]:
    """Apply the outcome of the request's oldest span in flight.

    Return the tokens, and the items of the extension, that are committed and that the client does not
    have yet.
    """
    stats, span = state.stats, outcome.span
    if state.extension is not None:
        num_guessed, num_right = state.extension.update(span, outcome.extra)
        stats.guessed += num_guessed
        stats.guessed_right += num_right
    if outcome.scores:
        if not outcome.is_canonical or span.start > state.canonical_len:  # fast, or after fast KV
            state.has_fast_scores = True
        state.scores.extend(outcome.scores)
        state.cached_scores = ()
        state.sent.add_scores(len(outcome.scores), outcome.new_scores)
    if outcome.is_lost and outcome.committed is None:
        _lose_guarantee(state)
        return (), ()
    if outcome.states is not None and state.pooled is not None:
        state.pooled.add(outcome.states, span.num_pooled)
        if state.pooled.is_complete and state.pooled.embedding is None:
            reason = "the hidden states of this prompt are not finite numbers, so it has no embedding"
            _fail(state, NotFinite(f"{reason}; {_FP16}"))
    stop = span.start + len(span.token_ids)
    if outcome.is_canonical:
        stats.canonical_passes += 1
        if span.start + span.num_cached <= state.canonical_len < stop:  # what is cached is not written
            state.canonical_len = stop
        if state.computed_len < stop:
            state.computed_len = stop
        if not outcome.is_certified:
            state.certified_only = False
    else:
        stats.fast_passes += 1
        state.computed_len = stop
    if state.phase is Phase.PREFILL:
        stats.prefill_passes += 1
    new_tokens: tuple[Sampled, ...] = ()
    if outcome.committed is not None:
        new_tokens = _commit(state, outcome, outcome.committed)
    elif outcome.candidate is not None:
        stats.candidates += 1
        state.tokens.propose(outcome.candidate)
    if state.only_scored and state.failure is None and not state.needs_prefill:
        state.finish_reason = "length"
        state.move(Phase.FINISHED)
    if state.extension is None:
        return new_tokens, ()
    new_items, is_same = state.extension.commit(state.valid_len)
    if not is_same:
        _lose_guarantee(state)
    return new_tokens, new_items


def _commit(state: RequestState, outcome: SpanOutcome, committed: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
    """Replace the candidates by the committed tokens, up to a stop string. Return those not sent before."""
    tokens, stats = state.tokens, state.stats
    if outcome.is_window:
        tokens.drop_candidates()
        if not state.has_draft:
            state.window_cap = adapt_window(
                state.window_cap,
                state.max_window,
                num_accepted=outcome.num_accepted,
                num_rejected=outcome.num_rejected,
            )
        state.has_draft = False
    num_committed = 0
    reason = outcome.finish_reason
    for sample in committed:
        token_id = sample.token_id
        state.add_token(token_id)
        num_committed += 1
        if num_committed <= outcome.num_sent_before:
            if state.sent.recompute(tokens.num_output, sample):
                state.confirmed.append(sample)
            continue
        state.sent.add(sample)
        if state.text.push(token_id):
            stop = state.finish_reason_after(token_id, tokens.num_output, text_stopped=True)
            if stop is not None:
                reason = stop
                break
    else:
        if outcome.is_lost:
            _lose_guarantee(state)
        elif outcome.has_no_token:
            _fail(state, _no_token_error(state))
    if reason is not None:
        state.finish_reason = reason
        state.move(Phase.FINISHED)
    num_accepted = min(outcome.num_accepted, num_committed)
    if outcome.is_window:
        stats.windows += 1
        stats.rollbacks += outcome.num_rejected > 0
        stats.rolled_back += outcome.num_accepted + outcome.num_rejected - num_accepted
    if outcome.is_canonical:
        stats.accepted += num_accepted
        stats.canonical_tokens += num_committed - num_accepted
    else:  # an ordinary request's fast tokens count as candidates that are accepted at once
        stats.accepted += num_committed
        stats.candidates += num_committed - num_accepted
    state.truncate_kv()
    return committed[outcome.num_sent_before : num_committed]


def _fail(state: RequestState, failure: AnswerFailed) -> None:
    state.failure = failure
    if state.is_live:  # the same tokens may have finished the answer
        state.move(Phase.FAILED)


def _no_token_error(state: RequestState) -> AnswerFailed:
    params, sampling = state.request.params, state.sampling
    has_lists = params.bad_token_ids or params.allowed_token_ids is not None
    if state.grammar is not None or has_lists or sampling.bad_words or sampling.suppressed_ids:
        problem = None if state.grammar is None else state.grammar.problem
        reason = "no token is left to choose: what is allowed and what is forbidden leave none"
        return NoTokenAllowed(problem or reason)
    return NotFinite(f"the model's logits are not finite numbers, so there is no token to choose; {_FP16}")


def _lose_guarantee(state: RequestState) -> None:
    # Bits of another engine prove nothing about this one's certificate.
    state.is_lost = not state.request.sent
    if state.failure is None:
        _fail(
            state,
            GuaranteeLost("tokens, logprobs or more that were already sent are not those of a verified pass"),
        )
