"""The whole engine on a GPU: answers do not depend on load, mode, CUDA graphs or async scheduling."""

from dataclasses import replace
from typing import cast

import pytest

from engines import HAS_GPU, answers, default_device, eager, open_engine, outcome, prompt, scheduled
from holdfast import SamplingParams
from holdfast.bench.determinism import open_plain_engine
from holdfast.bench.load import LoadScale, ProbeRequest
from holdfast.bench.stress import stress_test
from holdfast.core.pooling import Pooling
from holdfast.core.sampling_params import score_params
from holdfast.engine.engine import Engine
from holdfast.receipts.canonical_json import digest_of
from holdfast.receipts.reader import parse_receipt
from holdfast.worker.device import device_name
from holdfast.worker.model_runner import ModelRunner
from support.faulty_backend import FaultyBackend
from support.stepping import answer

GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, logprobs=2, deterministic=True)
SAMPLED = SamplingParams(
    max_tokens=40,
    temperature=0.9,
    top_p=0.95,
    top_k=50,
    seed=11,
    ignore_eos=True,
    logprobs=2,
    deterministic=True,
)
ORDINARY = SamplingParams(max_tokens=30, temperature=0.7, seed=3, ignore_eos=True)
SCALE = LoadScale(max_background=20, max_prompt_len=300, max_tokens=16, fault_rates=(0.0, 0.1))


@pytest.fixture(scope="module", params=["tiny", "smollm2-135m", "qwen3-0.6b"] if HAS_GPU else ["tiny"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return open_engine(request.param, kv_memory="1GiB" if HAS_GPU else "64MiB")


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Engine:
    return open_plain_engine(engine)


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return open_engine()


def test_certificate_covers_passes_of_all_sizes(engine: Engine) -> None:
    assert engine.certificate is not None
    assert engine.limits.refusal is None
    if HAS_GPU:
        assert engine.scheduler.config.one_pass_suffices


def test_receipt_names_device_driver_and_kernels(tiny: Engine) -> None:
    receipt = answers(tiny, [(prompt(20), GREEDY)])[0].receipt
    assert receipt is not None and parse_receipt(receipt).seal is not None
    machine = receipt["machine"]
    assert tiny.certificate is not None
    kernels = list(tiny.certificate.kernels)
    assert machine["kernels"] == (digest_of(kernels) if kernels else None)
    assert machine["device"] == device_name(default_device())
    assert (machine["driver"] is not None) == HAS_GPU


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_answer_is_the_same_alone_and_under_load_certified_and_verified(
    engine: Engine, plain: Engine, params: SamplingParams
) -> None:
    probe = ProbeRequest(prompt(90), params)
    certified = stress_test(engine, probe, ("auto",), 8, scale=SCALE)
    verified = stress_test(plain, probe, ("verify",), 8, scale=SCALE, seed=1)
    assert certified.num_revocations == 0
    assert certified.results.keys() == verified.results.keys()
    assert certified.num_distinct == 1


def test_async_scheduling_changes_no_answer(engine: Engine) -> None:
    requests = [(prompt(30 + number, number), (GREEDY, SAMPLED)[number % 2]) for number in range(9)]
    overlapped, stepwise = (
        [outcome(result) for result in answers(scheduled(engine, async_scheduling=overlaps), requests)]
        for overlaps in (True, False)
    )
    assert overlapped == stepwise


def test_prompt_logprobs_have_the_bits_of_reported_logprobs(tiny: Engine) -> None:
    asked = prompt(40)
    result = answers(scheduled(tiny), [(asked, SAMPLED)])[0]
    assert result.logprobs is not None
    engine = scheduled(tiny)
    request = engine.prepare(asked, score_params(deterministic=True), completion=result.token_ids)
    (scored,) = answer(engine, [request])
    assert scored.prompt_logprobs is not None
    found = [one.logprob for one in scored.prompt_logprobs if one is not None]
    assert found == [one.logprob for one in result.logprobs]


def test_embeddings_have_the_same_bits_alone_and_under_load(engine: Engine) -> None:
    """Prompts within a small CUDA graph, within a large one and in several chunks; in certified,
    verified and eager passes."""
    asked = [prompt(length, length) for length in (1, 7, 40, 300, 900)]
    params = score_params(deterministic=True)

    def embed(engine: Engine, prompts: list[tuple[int, ...]], num_others: int) -> list[bytes | None]:
        for number in range(num_others):
            engine.submit(engine.prepare(prompt(50, number), replace(ORDINARY, deterministic=number % 2 > 0)))
        requests = [
            engine.prepare(one, params, pooling=Pooling(pooling), want_receipt=False)
            for one in prompts
            for pooling in ("last", "mean")
        ]
        for request in requests:
            engine.submit(request)
        found = {}
        while engine.has_work:
            found |= {
                update.request_id: update.result for update in engine.step() if update.result is not None
            }
        engine.check()
        assert {found[request.request_id].determinism for request in requests} <= {"certified", "verified"}
        return [found[request.request_id].embedding for request in requests]

    alone = scheduled(engine, prefix_cache=False)
    truth = [bits for one in asked for bits in embed(alone, [one], 0)]
    assert None not in truth and len(set(truth)) == len(truth) - 1  # one token: last and mean are the same
    for other in (
        scheduled(engine),
        scheduled(engine, determinism="verify"),
        scheduled(engine, max_pass_tokens=2 * engine.scheduler.config.reference_tokens),
        scheduled(engine, async_scheduling=False),
        eager(engine),
    ):
        assert embed(other, asked, 8) == truth
        assert embed(other, asked[::-1], 0)[::-1] == [truth[at ^ 1] for at in range(len(truth))]


def test_preempted_requests_give_the_same_answers(tiny: Engine) -> None:
    page = tiny.scheduler.pool.page_size
    long = replace(GREEDY, max_tokens=2 * page + 20)
    requests = [(prompt(page - 10 + number, number), long) for number in range(6)]
    roomy = [outcome(result) for result in answers(scheduled(tiny), requests)]
    results = answers(scheduled(tiny, num_pages=8, prefix_cache=False), requests)
    assert [outcome(result) for result in results] == roomy
    assert sum(result.stats.preemptions for result in results) > 0


def test_spot_checks_find_nothing(engine: Engine) -> None:
    checking = scheduled(engine, spot_check_rate=1.0)
    answers(checking, [(prompt(40 + number, number), (GREEDY, SAMPLED)[number % 2]) for number in range(6)])
    assert checking.counters.num_spot_checks > 0
    assert checking.counters.num_revocations == 0


def test_faulty_layer_is_detected_and_the_certificate_revoked(tiny: Engine) -> None:
    right = answers(scheduled(tiny), [(prompt(60), GREEDY)])[0]
    backend = cast(ModelRunner, tiny.runner)._decoder.backend
    wrong = scheduled(eager(tiny, FaultyBackend(backend, 1.01)), spot_check_rate=1.0)
    long = replace(GREEDY, max_tokens=500)  # a spot check waits for as many tokens as a reference pass has
    hit = answers(wrong, [(prompt(60), long)], may_fail=True)[0]
    assert wrong.counters.num_revocations == 1
    assert wrong.certificate is None
    assert outcome(hit) == outcome(answers(scheduled(tiny), [(prompt(60), long)])[0]) or (
        hit.error_code == "guarantee_lost"
    )
    later = answers(wrong, [(prompt(60), GREEDY)])[0]
    assert later.determinism == "verified"
    assert outcome(later) == outcome(right)
