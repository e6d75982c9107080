"""One request's lengths, windows and pages, without a scheduler."""

import pytest

from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampled
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache
from holdfast.scheduler.request_state import FIRST_WINDOW, Phase, RequestState
from holdfast.scheduler.spans import candidate_span, canonical_span
from scheduler.driver import PAGE_SIZE, StopAt


def make(prompt_len: int = 3, *, text: StopAt | None = None, eos: int = 99, **params: object) -> RequestState:
    pool = PagePool(32, PAGE_SIZE)
    settings = {"max_tokens": 30, "temperature": 0, "deterministic": True, **params}
    request = Request(1, tuple(range(prompt_len)), SamplingParams(**settings), 5, frozenset({eos}))  # type: ignore[arg-type]
    return RequestState(request, text or StopAt(), pool, PrefixCache(pool), max_window=7)


def said(*token_ids: int) -> list[Sampled]:
    return [Sampled(token_id) for token_id in token_ids]


def prefilled(**params: object) -> RequestState:
    """A deterministic sequence with its first token, 50, committed."""
    seq = make(**params)  # type: ignore[arg-type]
    seq.admit([], seq.prefix_cursor._index.root, 0)
    seq.page_table.grow(3)
    assert seq.absorb_canonical(canonical_span(seq, 64), said(50), certified=False) == tuple(said(50))
    seq.move(Phase.DECODE)
    return seq


def propose(seq: RequestState, *token_ids: int) -> None:
    for token_id in token_ids:
        seq.page_table.grow(seq.tokens.total_len)
        assert seq.absorb_fast(candidate_span(seq), said(token_id)) == ()


def judge(seq: RequestState, *canonical: int) -> tuple[int, ...]:
    seq.page_table.grow(seq.tokens.total_len)
    seq.move(Phase.VERIFY)
    committed = seq.absorb_canonical(canonical_span(seq, 64), said(*canonical), certified=False)
    return tuple(sample.token_id for sample in committed)


def test_the_last_committed_token_opens_the_window() -> None:
    seq = prefilled()
    assert seq.canonical_len == seq.tokens.committed_len - 1 == 3
    propose(seq, 60, 61)
    span = canonical_span(seq, 64)
    assert (span.start, span.token_ids, span.sample_from) == (3, (50, 60, 61), 0)


def test_a_chunk_of_a_prompt_samples_nothing_until_its_last_row() -> None:
    seq = make(prompt_len=10)
    assert seq.needs_prefill
    first = canonical_span(seq, 8)
    assert (first.num_tokens, first.num_sampled) == (8, 0)
    seq.admit([], seq.prefix_cursor._index.root, 0)
    assert seq.absorb_canonical(first, [], certified=True) == ()
    last = canonical_span(seq, 8)
    assert (last.start, last.num_tokens, last.num_sampled) == (8, 2, 1)


@pytest.mark.parametrize("wrong_at", range(4))
def test_a_mismatch_at_every_offset_truncates_to_it(wrong_at: int) -> None:
    seq = prefilled()
    propose(seq, 60, 61, 62)
    canonical = [60, 61, 62, 63]
    canonical[wrong_at] = 77
    assert judge(seq, *canonical) == tuple(canonical[: wrong_at + 1])
    assert seq.tokens.num_candidates == 0
    assert seq.canonical_len == seq.computed_len == seq.tokens.committed_len - 1
    assert len(seq.page_table) == -(-seq.tokens.committed_len // PAGE_SIZE)
    stats = seq.stats
    assert (stats.candidates, stats.accepted, stats.rolled_back) == (3, wrong_at, 3 - wrong_at)
    assert (stats.windows, stats.rollbacks, stats.canonical_tokens) == (1, int(wrong_at < 3), 2)


def test_a_rollback_over_a_page_edge_gives_the_page_back() -> None:
    seq = prefilled()
    propose(seq, 60, 61, 62, 63, 64)  # positions 4 .. 8, in pages 1 and 2
    seq.page_table.grow(seq.tokens.total_len)
    assert len(seq.page_table) == 3
    assert judge(seq, 77, 0, 0, 0, 0, 0) == (77,)
    assert len(seq.page_table) == 2
    assert seq.page_table._pool.num_held == 2


def test_a_stop_inside_a_window_ends_it_there() -> None:
    seq = prefilled(text=StopAt(3))
    propose(seq, 60, 61, 62)
    assert judge(seq, 60, 61, 62, 63) == (60, 61)
    assert (seq.phase, seq.finish_reason) == (Phase.FINISHED, "stop")
    assert (seq.stats.accepted, seq.stats.rolled_back, seq.stats.canonical_tokens) == (2, 1, 1)


def test_min_tokens_outlasts_a_stop() -> None:
    seq = prefilled(min_tokens=3, eos=60)
    assert seq.sampling.suppressed_ids == (60,)
    propose(seq, 60, 61)
    assert judge(seq, 60, 61, 62) == (60, 61, 62)
    assert seq.phase is Phase.VERIFY
    ignoring = make(min_tokens=3, ignore_eos=True, stop_token_ids=[4])
    assert ignoring.sampling.suppressed_ids == (4,)
    assert make(stop_token_ids=[4]).sampling.suppressed_ids == ()


def test_the_window_grows_while_it_stands_and_shrinks_when_it_falls() -> None:
    seq = prefilled()
    caps = [seq.window_cap]
    for _ in range(4):
        ids = range(200, 200 + seq.window_cap)
        propose(seq, *ids)
        assert seq.is_window_due
        judge(seq, *ids, 9)
        seq.move(Phase.DECODE)
        caps.append(seq.window_cap)
    assert caps == [FIRST_WINDOW, 2, 4, 7, 7]
    propose(seq, 1, 2, 3, 4, 5, 6, 7)
    judge(seq, 1, 2, 0, 0, 0, 0, 0, 0)
    assert seq.window_cap == 2
    seq.move(Phase.DECODE)
    propose(seq, 1)
    judge(seq, 0, 0)
    assert seq.window_cap == 1


def test_a_candidate_that_looks_final_is_due_at_once() -> None:
    seq = prefilled(eos=61)
    seq.window_cap = 7
    propose(seq, 60)
    assert not seq.is_window_due
    propose(seq, 61)
    assert seq.is_window_due


def test_preemption_keeps_committed_tokens_and_nothing_else() -> None:
    seq = prefilled()
    propose(seq, 60, 61)
    seq.preempt()
    assert seq.phase is Phase.QUEUED
    assert (seq.tokens.output_ids, seq.tokens.candidates) == ((50,), ())
    assert (seq.canonical_len, seq.computed_len, len(seq.page_table)) == (0, 0, 0)
    assert (seq.stats.preemptions, seq.stats.rolled_back) == (1, 2)
    assert seq.window_cap == FIRST_WINDOW
    assert seq.needs_prefill


def test_determinism_is_certified_only_if_every_canonical_pass_was() -> None:
    seq = make()
    assert seq.determinism == "certified"
    seq.absorb_canonical(canonical_span(seq, 2), [], certified=True)
    seq.absorb_canonical(canonical_span(seq, 1), said(9), certified=False)
    assert seq.determinism == "verified"
    assert make(deterministic=False).determinism == "none"


def test_a_candidates_logprob_is_never_asked_for() -> None:
    seq = prefilled(logprobs=3)
    assert candidate_span(seq).logprobs is None
    assert canonical_span(seq, 8).logprobs == 3


def test_only_full_canonical_pages_are_made_known() -> None:
    seq = prefilled()
    propose(seq, 60, 61, 62)
    seq.cache_pages()
    assert seq.prefix_cursor._index.num_pages == 0  # 3 canonical positions, 7 computed ones
    judge(seq, 60, 61, 62, 63)
    seq.cache_pages()
    assert seq.prefix_cursor._index.num_pages == 1  # 7 canonical positions
    assert seq.prefix_cursor._index.root.children[(0, 1, 2, 50)].canonical == seq.page_table[0]
