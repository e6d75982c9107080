"""What the result of a pass means for one request: tokens to commit, candidates to reject, the end
of the answer.

A verification window holds the last committed token and n candidates. The canonical pass samples n
+ 1 canonical tokens c1 .. cn+1, one after each token of the window. With `a` the number of leading
candidates that equal their canonical tokens, c1 .. ca+1 are committed: `a` accepted candidates and
exactly one more token, the correction if a < n, the bonus token if a = n. So every canonical pass
makes progress.

    window       T0   T1'  T2'  T3'
    canonical    T1   T2   T3   T4      T1 = T1', T2 != T2': accept 1, commit T1 T2, reject 2 (T2', T3')

A result takes one trip through the scheduler:

    verify(state, span, samples)   ->  SpanOutcome      a pure function, here
    apply(state, outcome)          ->  what is new      commit.py: the only place where a result changes a request
    Scheduler                          fills the prefix cache, emits events
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.pooling import HiddenStates
from holdfast.core.step_plan import NO_TOKEN, Sampled, Span, TokenLogprob
from holdfast.core.stop_rules import FinishReason
from holdfast.scheduler.request_state import RequestState


def count_accepted(candidates: Sequence[int], canonical: Sequence[int]) -> int:
    """Return how many leading candidates equal the canonical tokens of their window."""
    assert len(canonical) == len(candidates) + 1, "a window of n candidates has n + 1 canonical tokens"
    num_accepted = 0
    for candidate, decided in zip(candidates, canonical, strict=False):
        if candidate != decided:
            break
        num_accepted += 1
    return num_accepted


@dataclass(init=False)
class SpanOutcome:
    """What one span means for its request. `verify` fills it in. After that nothing changes it.

    The defaults are class attributes, so that the outcome of a decode token costs little to make.
    """

    span: Span  # up to the first wrong guess of the request's extension
    is_canonical: bool
    is_certified: bool
    candidate: int | None = None  # proposed by a fast pass for a deterministic request
    # If the request had candidates: the first num_accepted are accepted, the other num_rejected rejected.
    is_window: bool = False
    num_accepted: int = 0
    num_rejected: int = 0
    # The tokens to commit, in order, or None if the span samples none. The first num_sent_before of
    # them were sent to the client before the request restarted.
    committed: tuple[Sampled, ...] | None = None
    num_sent_before: int = 0
    # The last committed token ends the answer. A stop string may end it earlier, when the text is
    # extended.
    finish_reason: FinishReason | None = None
    has_no_token: bool = False  # there is none to choose after the committed ones
    # Tokens or scores that were sent are not those of this pass. If it is the scores, committed is
    # None.
    is_lost: bool = False
    scores: tuple[TokenLogprob, ...] = ()
    new_scores: tuple[TokenLogprob, ...] = ()  # the client has the others already
    extra: object = None  # what the planned span's pass found for the request's extension
    states: HiddenStates | None = None  # of the span's pooled tokens, and of those after a wrong guess

    def __init__(self, span: Span, is_canonical: bool, is_certified: bool) -> None:
        self.span = span
        self.is_canonical = is_canonical
        self.is_certified = is_certified


def verify(
    state: RequestState,
    span: Span,
    samples: tuple[Sampled, ...],
    *,
    is_canonical: bool,
    is_certified: bool = False,
    scores: tuple[TokenLogprob, ...] = (),
    extra: object = None,
    states: HiddenStates | None = None,
) -> SpanOutcome:
    """Return the outcome of the request's oldest span in flight. Change neither the state nor its parts."""
    outcome = SpanOutcome(span, is_canonical, is_certified)
    if state.extension is not None:
        outcome.extra = extra
        outcome.span = span = span.head(state.extension.num_valid(span, extra))
        samples, scores = samples[: span.num_sampled], scores[: span.num_scored]
    if span.num_pooled:
        outcome.states = states
    scores = (*state.cached_scores, *scores)
    if scores:
        outcome.scores = scores
        outcome.new_scores, is_same = state.sent.compare_scores(scores)
        if not is_same:
            outcome.is_lost = True
            return outcome
    if not samples:
        return outcome
    if state.deterministic and not is_canonical:
        # If there is no token, propose token 0, which the embedding reads in its place.
        outcome.candidate = max(0, samples[0].token_id)
        return outcome
    if state.tokens.num_candidates:
        candidates = state.tokens.candidates
        canonical = [sample.token_id for sample in samples]
        num_accepted = count_accepted(candidates[: len(samples) - 1], canonical)
        samples = samples[: num_accepted + 1]
        outcome.is_window, outcome.num_accepted = True, num_accepted
        # Candidates after a wrong guess of the extension were not sampled. They are rejected, too.
        outcome.num_rejected = len(candidates) - num_accepted
    else:
        assert len(samples) == 1, "a span without candidates samples one token"
    _commit(state, samples, outcome)
    return outcome


def _commit(state: RequestState, samples: tuple[Sampled, ...], outcome: SpanOutcome) -> None:
    """Commit samples until one ends the answer, is not allowed, or contradicts what was sent."""
    num_output, num_committed = state.tokens.num_output, 0
    num_sent, max_tokens, stop_ids = state.sent.num_sent, state.max_tokens, state.stop_ids
    for sample in samples:
        token_id = sample.token_id
        if token_id == NO_TOKEN:
            outcome.has_no_token = True
            break
        num_output += 1
        num_committed += 1
        if num_output <= num_sent:
            outcome.num_sent_before += 1
            if not state.sent.confirms(num_output, sample):
                outcome.is_lost = True
                break
        elif token_id in stop_ids or num_output >= max_tokens:
            outcome.finish_reason = state.finish_reason_after(token_id, num_output, text_stopped=False)
            if outcome.finish_reason is not None:
                break
    outcome.committed = samples[:num_committed]
