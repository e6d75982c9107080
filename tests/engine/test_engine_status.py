"""The engine's status: pages held by requests, idle pages, counters."""

import pytest

from holdfast import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(tiny_llama):
    return LLM(str(tiny_llama), dtype="fp32", max_pass_tokens=64, max_num_seqs=2)


def test_status_before_during_and_after_work(llm):
    engine = llm.engine
    size = engine.scheduler.pool.page_size
    before = engine.status
    assert (
        (before.num_running, before.num_waiting) == (before.num_pages_used, before.num_pages_idle) == (0, 0)
    )
    assert before.counters.num_steps == 0
    assert before.num_pages == engine.scheduler.pool.num_pages

    params = SamplingParams(max_tokens=4, deterministic=True, ignore_eos=True)
    requests = [engine.prepare([5 + number] * (2 * size), params) for number in range(3)]
    for request in requests:
        engine.submit(request)
    engine.step()
    during = engine.status
    assert (during.num_running, during.num_waiting) == (2, 1)
    assert during.num_pages_used >= 4
    assert during.counters.num_steps == 1
    assert during.counters.num_padded_tokens > 0

    while engine.has_work:
        engine.step()
    after = engine.status
    assert (after.num_running, after.num_waiting, after.num_pages_used) == (0, 0, 0)
    assert after.num_pages_idle == engine.scheduler.prefix_cache.num_pages >= 6
    assert after.counters.num_steps > during.counters.num_steps
    assert after.counters.num_canonical_passes > 0
