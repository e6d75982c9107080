"""One request's lengths, windows, pages and phases, without a scheduler."""

import math
from itertools import product

import pytest

from holdfast.core.request import Prepared, Request
from holdfast.core.results import Delta
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.core.step_plan import NO_TOKEN, Sampled, Span, TokenLogprob
from holdfast.errors import AnswerFailed, NotFinite, NoTokenAllowed
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache
from holdfast.scheduler import commit
from holdfast.scheduler.request_state import FIRST_WINDOW, LIVE, TRANSITIONS, Phase, RequestState
from holdfast.scheduler.spans import candidate_span, next_span
from holdfast.scheduler.token_log import ConfirmLog
from holdfast.scheduler.verification import verify
from scheduler.driver import PAGE_SIZE, StopAt


def make(prompt_len: int = 3, *, text: StopAt | None = None, eos: int = 99, **params: object) -> RequestState:
    pool = PagePool(32, PAGE_SIZE)
    settings = {"max_tokens": 30, "temperature": 0, "deterministic": True, **params}
    request = Request(1, tuple(range(prompt_len)), SamplingParams(**settings), 5)  # type: ignore[arg-type]
    return RequestState(
        Prepared(request, frozenset({eos})), 0, text or StopAt(), pool, PrefixCache(pool), max_window=7
    )


def start(state: RequestState) -> None:
    state.admit(state.prefix_cursor._prefix_cache.no_match())


def apply(
    state: RequestState, span: Span, *token_ids: int, canonical: bool = True, certified: bool = False
) -> tuple[int, ...]:
    """What is new to the client after a pass that sampled these tokens."""
    samples = tuple(Sampled(token_id) for token_id in token_ids)
    outcome = verify(state, span, samples, is_canonical=canonical, is_certified=certified)
    new, _ = commit.apply(state, outcome)
    return tuple(sample.token_id for sample in new)


def prefilled(**params: object) -> RequestState:
    """A deterministic request with its first token, 50, committed."""
    state = make(**params)  # type: ignore[arg-type]
    start(state)
    state.page_table.grow(3)
    assert apply(state, next_span(state, 64), 50) == (50,)
    state.move(Phase.DECODE)
    return state


def propose(state: RequestState, *token_ids: int) -> None:
    for token_id in token_ids:
        state.page_table.grow(state.tokens.total_len)
        assert apply(state, candidate_span(state), token_id, canonical=False) == ()


def decide(state: RequestState, *canonical: int) -> tuple[int, ...]:
    state.page_table.grow(state.tokens.total_len)
    state.move(Phase.VERIFY)
    return apply(state, next_span(state, 64), *canonical)


def test_window_starts_at_the_last_committed_token() -> None:
    state = prefilled()
    assert state.canonical_len == state.tokens.committed_len - 1 == 3
    propose(state, 60, 61)
    span = next_span(state, 64)
    assert (span.start, span.token_ids, span.sample_from) == (3, (50, 60, 61), 0)


def test_prefill_samples_only_after_its_last_token() -> None:
    state = make(prompt_len=10)
    assert state.needs_prefill
    first = next_span(state, 8)
    assert (first.num_tokens, first.num_sampled) == (8, 0)
    start(state)
    assert apply(state, first, certified=True) == ()
    last = next_span(state, 8)
    assert (last.start, last.num_tokens, last.num_sampled) == (8, 2, 1)


@pytest.mark.parametrize("wrong_at", range(4))
def test_rollback_truncates_to_the_first_mismatch(wrong_at: int) -> None:
    state = prefilled()
    propose(state, 60, 61, 62)
    canonical = [60, 61, 62, 63]
    canonical[wrong_at] = 77
    assert decide(state, *canonical) == tuple(canonical[: wrong_at + 1])
    assert state.tokens.num_candidates == 0
    assert state.canonical_len == state.computed_len == state.tokens.committed_len - 1
    assert len(state.page_table) == -(-state.tokens.committed_len // PAGE_SIZE)
    stats = state.stats
    assert (stats.candidates, stats.accepted, stats.rolled_back) == (3, wrong_at, 3 - wrong_at)
    assert (stats.windows, stats.rollbacks, stats.canonical_tokens) == (1, int(wrong_at < 3), 2)


def test_rollback_frees_pages() -> None:
    state = prefilled()
    propose(state, 60, 61, 62, 63, 64)  # positions 4 .. 8, in pages 1 and 2
    state.page_table.grow(state.tokens.total_len)
    assert len(state.page_table) == 3
    assert decide(state, 77, 0, 0, 0, 0, 0) == (77,)
    assert len(state.page_table) == 2
    assert state.page_table._pool.num_held == 2


def test_stop_string_inside_a_window_ends_the_answer() -> None:
    state = prefilled(text=StopAt(3))
    propose(state, 60, 61, 62)
    assert decide(state, 60, 61, 62, 63) == (60, 61)
    assert (state.phase, state.finish_reason) == (Phase.FINISHED, "stop")
    assert (state.stats.accepted, state.stats.rolled_back, state.stats.canonical_tokens) == (2, 1, 1)


def test_stop_token_before_min_tokens_does_not_end_the_answer() -> None:
    state = prefilled(min_tokens=3, eos=60)
    assert state.sampling.suppressed_ids == (60,)
    propose(state, 60, 61)
    assert decide(state, 60, 61, 62) == (60, 61, 62)
    assert state.phase is Phase.VERIFY
    ignoring = make(min_tokens=3, ignore_eos=True, stop_token_ids=[4])
    assert ignoring.sampling.suppressed_ids == (4,)
    assert make(stop_token_ids=[4]).sampling.suppressed_ids == ()


def test_window_grows_when_accepted_and_shrinks_when_rejected() -> None:
    state = prefilled()
    caps = [state.window_cap]
    for _ in range(4):
        ids = range(200, 200 + state.window_cap)
        propose(state, *ids)
        assert state.is_window_due
        decide(state, *ids, 9)
        state.move(Phase.DECODE)
        caps.append(state.window_cap)
    assert caps == [FIRST_WINDOW, 2, 4, 7, 7]
    propose(state, 1, 2, 3, 4, 5, 6, 7)
    decide(state, 1, 2, 0, 0, 0, 0, 0, 0)
    assert state.window_cap == 2
    state.move(Phase.DECODE)
    propose(state, 1)
    decide(state, 0, 0)
    assert state.window_cap == 1


def test_window_is_due_when_a_candidate_looks_final() -> None:
    state = prefilled(eos=61)
    state.window_cap = 7
    propose(state, 60)
    assert not state.is_window_due
    propose(state, 61)
    assert state.is_window_due


def test_preemption_keeps_committed_tokens_and_nothing_else() -> None:
    state = prefilled()
    propose(state, 60, 61)
    state.preempt()
    assert state.phase is Phase.QUEUED
    assert (state.tokens.ids(3, 99), state.tokens.candidates) == ((50,), ())
    assert (state.canonical_len, state.computed_len, len(state.page_table)) == (0, 0, 0)
    assert (state.stats.preemptions, state.stats.rolled_back) == (1, 2)
    assert state.window_cap == FIRST_WINDOW
    assert state.needs_prefill


def test_determinism_is_certified_only_if_every_canonical_pass_was() -> None:
    state = make()
    assert state.determinism == "certified"
    apply(state, next_span(state, 2), certified=True)
    apply(state, next_span(state, 1), 9)
    assert state.determinism == "verified"
    assert make(deterministic=False).determinism == "none"


def test_candidate_spans_ask_for_no_logprobs() -> None:
    state = prefilled(logprobs=3)
    assert candidate_span(state).logprobs is None
    assert next_span(state, 8).logprobs == 3


def test_only_full_canonical_pages_are_cached() -> None:
    state = prefilled()
    propose(state, 60, 61, 62)
    state.cache_pages()
    assert state.prefix_cursor._prefix_cache.num_pages == 0  # 3 canonical positions, 7 computed ones
    decide(state, 60, 61, 62, 63)
    state.cache_pages()
    assert state.prefix_cursor._prefix_cache.num_pages == 1  # 7 canonical positions
    cached = state.prefix_cursor._prefix_cache.root.children[(0, 1, 2, 50)].canonical
    assert cached is not None and cached.number == state.page_table[0]


@pytest.mark.parametrize(
    "token_ids", [(60, 61, 62, 63), (60, 77, 0, 0), (60, 61, NO_TOKEN, 0), (99, 0, 0, 0)]
)
def test_verify_changes_nothing(token_ids: tuple[int, ...]) -> None:
    state = prefilled()
    propose(state, 60, 61, 62)
    state.page_table.grow(state.tokens.total_len)
    samples = tuple(Sampled(token_id) for token_id in token_ids)
    span = next_span(state, 64)

    def parts() -> tuple[object, ...]:
        text, tokens = list(state.text.seen), state.tokens  # type: ignore[attr-defined]
        return (
            state.stats,
            tokens.ids(0, 99),
            tokens.committed_len,
            state.canonical_len,
            state.page_table.pages,
            text,
        )

    before = parts()
    first = verify(state, span, samples, is_canonical=True)
    assert first == verify(state, span, samples, is_canonical=True)
    assert parts() == before


@pytest.mark.parametrize(
    ("params", "failure"),
    [
        ({}, NotFinite),
        ({"presence_penalty": 1.0}, NotFinite),
        ({"bad_token_ids": [7]}, NoTokenAllowed),
        ({"allowed_token_ids": [60]}, NoTokenAllowed),
    ],
    ids=str,
)
def test_a_place_without_a_token_fails_the_request(
    params: dict[str, object], failure: type[AnswerFailed]
) -> None:
    """By the request's own settings, or because no logit is a number."""
    state = prefilled(**params)
    propose(state, 60, 61)
    assert decide(state, 60, NO_TOKEN, 0) == (60,)
    assert state.phase is Phase.FAILED and type(state.failure) is failure


# Phases

ALLOWED = {
    ("queued", "prefill"), ("queued", "aborted"), ("queued", "failed"),
    ("prefill", "decode"), ("prefill", "finished"), ("prefill", "queued"), ("prefill", "aborted"),
    ("prefill", "failed"),
    ("decode", "verify"), ("decode", "finished"), ("decode", "queued"), ("decode", "aborted"), ("decode", "failed"),
    ("verify", "decode"), ("verify", "finished"), ("verify", "queued"), ("verify", "aborted"), ("verify", "failed"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(product(Phase, Phase)))
def test_move_allows_exactly_the_transitions_of_the_table(source: Phase, target: Phase) -> None:
    state = make()
    state.phase = source
    if (source.value, target.value) in ALLOWED:
        state.move(target)
        assert state.phase is target
    else:
        with pytest.raises(AssertionError, match=f"from {source.value} to {target.value}"):
            state.move(target)


def test_ended_phases_have_no_successor() -> None:
    assert set(Phase) - LIVE == {Phase.FINISHED, Phase.ABORTED, Phase.FAILED}
    assert all(not TRANSITIONS[phase] for phase in set(Phase) - LIVE)


def test_unknown_logprobs_are_not_compared() -> None:
    """Those of a client's own tokens, until this engine has computed them."""
    sent = Sent()
    sent.add(Delta(token_ids=(5, 6), token_logprobs=(math.nan, -1.0)))
    tokens = ConfirmLog(keeps=True)
    tokens.restore(sent)
    five, six = (Sampled(id_, TokenLogprob(id_, -2.0)) for id_ in (5, 6))
    assert tokens.confirms(1, five) and not tokens.confirms(1, six) and not tokens.confirms(2, six)
    assert tokens.recompute(1, five) and tokens.confirms(1, five)
    assert not tokens.confirms(1, Sampled(5, TokenLogprob(5, -3.0)))
