"""The engine's numbers: what requests hold, what only the cache holds, and what was done."""

import pytest

from holdfast import LLM, SamplingParams
from holdfast.server.ipc.engine_status import status_of


@pytest.fixture(scope="module")
def llm(tiny_llama):
    return LLM(str(tiny_llama), dtype="fp32", max_pass_tokens=64, max_num_seqs=2)


def test_the_engine_before_during_and_after_work(llm):
    engine = llm.engine
    size = engine.scheduler.pool.page_size
    before = status_of(engine)
    assert (before.running, before.waiting, before.pages_used, before.pages_cached) == (0, 0, 0, 0)
    assert before.steps == 0
    assert before.num_pages == engine.scheduler.pool.num_pages

    params = SamplingParams(max_tokens=4, deterministic=True, ignore_eos=True)
    requests = [engine.prepare([5 + number] * (2 * size), params) for number in range(3)]
    for request in requests:
        engine.submit(request)
    engine.step()
    during = status_of(engine)
    assert (during.running, during.waiting) == (2, 1)
    assert during.pages_used >= 4
    assert during.steps == 1
    assert during.rows > 0

    while engine.has_work:
        engine.step()
    after = status_of(engine)
    assert (after.running, after.waiting, after.pages_used) == (0, 0, 0)
    assert after.pages_cached == engine.scheduler.prefix_cache.num_pages >= 6
    assert after.steps > during.steps
    assert after.canonical_passes > 0
