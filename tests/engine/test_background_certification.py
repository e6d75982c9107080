"""A certificate that is made while the engine serves: the same bits before, during and after."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import SamplingParams
from holdfast.certification import certify as planning
from holdfast.certification.certificate import CheckSteps, OperationCheck, load_certificate
from holdfast.core.results import Result
from holdfast.engine import background_work as certifying
from holdfast.engine.engine import Engine
from holdfast.engine.llm.engine_thread import EngineThread
from holdfast.engine.llm.llm import LLM
from holdfast.engine.start import builder
from holdfast.errors import DeterminismRefused
from support.stepping import finish

PARAMS = SamplingParams(
    max_tokens=24, temperature=0.8, seed=3, ignore_eos=True, deterministic=True, logprobs=2
)
PROMPTS = [[5, 6, 7], [9] * 40, [11, 12]]
SETTINGS: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 8}

Bits = tuple[Any, ...]


def bits(result: Result) -> Bits:
    return result.token_ids, result.logprobs, result.finish_reason


@pytest.fixture
def new(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LLM]:
    """Opens the model on a machine without certificates."""
    from holdfast.numerics.backends.select_backend import open_backend

    open_backend(torch.float32, num_threads=1)  # builds the C kernels in the cache of the test session
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(certifying, "_BUSY_SECONDS", 0.0)  # a slice is one step of a check

    def open_llm(**settings: Any) -> LLM:
        return LLM(str(tiny_llama), certification="background", **{**SETTINGS, **settings})

    return open_llm


@pytest.fixture
def expected(auto_llm: LLM) -> list[Bits]:
    return [bits(result) for result in auto_llm.generate(PROMPTS, PARAMS)]


def submit(engine: Engine, prompt: list[int], params: SamplingParams = PARAMS) -> int:
    request = engine.prepare(prompt, params)
    engine.submit(request)
    return request.request_id


@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_first_request_is_verified_and_later_ones_are_certified_with_the_same_bits(
    new: Callable[..., LLM], kernels: str
) -> None:
    llm = new(kernels=kernels)
    engine = llm.engine
    assert engine.certificate is None and engine.certificate_state.state == "certifying"
    before = llm.generate(PROMPTS, PARAMS)
    assert [result.determinism for result in before] == ["verified"] * 3
    fingerprint = engine.fingerprint.digest
    certificate = engine.certify()
    assert certificate is not None and engine.certificate_state.state == "certified"
    after = llm.generate(PROMPTS, PARAMS)
    assert [bits(result) for result in after] == [bits(result) for result in before]
    if kernels == "c":
        assert [result.determinism for result in after] == ["certified"] * 3
    receipts = [result.receipt for result in (before[0], after[0])]
    assert receipts[0] is not None and receipts[1] is not None
    assert receipts[0]["fingerprint"] == receipts[1]["fingerprint"]
    assert [one["certificate"] for one in receipts] == [None, certificate.digest]
    assert engine.fingerprint.digest == fingerprint
    assert load_certificate(certificate.key) == certificate


def test_requests_that_live_through_the_switch_keep_their_bits(
    new: Callable[..., LLM], expected: list[Bits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch comes after each number of steps, with candidates at every stage."""
    llm = new()
    certificate = llm.engine.certify()
    assert certificate is not None
    for after in range(0, 24, 3):
        monkeypatch.setattr(builder, "load_certificate", lambda key: None)
        engine = new().engine
        ids = [submit(engine, prompt) for prompt in PROMPTS]
        for _ in range(after):
            engine.step()
        certification: Any = engine.background._certification
        certification.certificate = certificate
        results = finish(engine)
        assert engine.certificate is certificate and not engine.has_background_work
        assert [bits(results[one]) for one in ids] == expected, f"switched after {after} steps"
        assert engine.counters.num_certified_passes > 0
        assert engine.scheduler.pool.num_held == 0


@pytest.mark.long
def test_slices_between_steps_complete_the_certificate(
    new: Callable[..., LLM], expected: list[Bits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certifying, "SHARE", 1.0)
    engine = new().engine
    done: list[Bits] = []
    while engine.certificate is None:
        ids = [submit(engine, prompt) for prompt in PROMPTS]
        results = finish(engine)
        done += [bits(results[one]) for one in ids]
        assert len(done) < 3000
    assert engine.certificate.refusal is None and len(engine.certificate.sizes) > 3
    assert all(done[at : at + 3] == expected for at in range(0, len(done), 3))


def test_idle_engine_thread_certifies_by_itself(new: Callable[..., LLM], expected: list[Bits]) -> None:
    engine = new().engine
    with EngineThread(lambda: engine) as running:
        first = running.submit(PROMPTS[0], PARAMS).wait()
        for _ in range(600):
            if engine.certificate is not None:
                break
            time.sleep(0.05)
        second = running.submit(PROMPTS[0], PARAMS).wait()
    assert bits(first) == bits(second) == expected[0]
    assert (first.determinism, second.determinism) == ("verified", "certified")


def test_next_process_continues_an_unfinished_certification(new: Callable[..., LLM]) -> None:
    whole = new().engine.certify()
    assert whole is not None
    from holdfast.certification.certificate import delete_certificate

    delete_certificate(whole.key)
    certification: Any = new().engine.background._certification
    while certification.progress[0] < 5:
        certification.advance(0.0)
    certification.interrupt()
    again = new().engine
    continued: Any = again.background._certification
    assert continued.progress[0] >= 5
    state = again.certificate_state
    assert state.checks_done <= state.checks  # which are not counted yet
    made = again.certify()
    assert made is not None and replace(made, seconds=0) == replace(whole, seconds=0)


def failing_check(error: Exception) -> CheckSteps:
    raise error
    yield


def contradiction() -> CheckSteps:
    yield
    return OperationCheck("planted", "[1]", (1,), (0, 1), 1)


def with_check(monkeypatch: pytest.MonkeyPatch, check: Callable[[], CheckSteps]) -> None:
    def checks(*_: Any) -> Iterator[Callable[[], CheckSteps]]:
        yield check

    monkeypatch.setattr(planning, "_gemm_checks", checks)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("no kernel image")])
def test_certification_that_fails_leaves_verification_running(
    new: Callable[..., LLM], expected: list[Bits], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with_check(monkeypatch, lambda: failing_check(error))
    llm = new()
    results = llm.generate(PROMPTS, PARAMS)
    assert [bits(result) for result in results] == expected
    assert {result.determinism for result in results} == {"verified"}
    assert llm.engine.certificate_state.state == "failed" and not llm.engine.has_background_work


def test_reference_that_contradicts_itself_ends_deterministic_requests(
    new: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_check(monkeypatch, contradiction)
    monkeypatch.setattr(planning, "_layer_checks", lambda *_: iter(()))
    monkeypatch.setattr(planning, "_weightless_checks", lambda *_: iter(()))
    monkeypatch.setattr(certifying, "SHARE", 1.0)
    engine = new().engine
    long = replace(PARAMS, max_tokens=200)
    prepared = engine.prepare(PROMPTS[2], PARAMS)
    ids = [submit(engine, prompt, long) for prompt in PROMPTS]
    ordinary = submit(engine, PROMPTS[0], replace(long, deterministic=False))
    results = finish(engine)
    assert [results[one].error_code for one in ids] == ["guarantee_lost"] * 3
    assert all(results[one].determinism == "none" and results[one].receipt is None for one in ids)
    assert results[ordinary].error is None and len(results[ordinary].token_ids) == 200
    assert engine.certificate_state.state == "refused"
    with pytest.raises(DeterminismRefused, match="planted"):
        engine.prepare(PROMPTS[0], PARAMS)
    with pytest.raises(DeterminismRefused):
        engine.submit(prepared)
    assert engine.scheduler.pool.num_held == 0


def test_faulty_reference_is_refused_before_the_first_answer(
    new: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_reference_checks", lambda *_: iter([contradiction]))
    llm = new()
    assert llm.engine.certificate is not None and llm.engine.certificate.refusal is not None
    with pytest.raises(DeterminismRefused):
        llm.generate(PROMPTS, PARAMS)


def test_pages_lent_to_a_check_are_given_back_when_requests_need_them(new: Callable[..., LLM]) -> None:
    engine = new(kv_memory="256KiB").engine
    scheduler = engine.scheduler
    assert engine.certificate is None
    lent = scheduler.lend_pages(scheduler.pool.num_pages)
    assert 0 < len(lent) <= scheduler.pool.num_pages // 2
    scheduler.check()
    assert not scheduler.lacks_lent_pages
    capacity = scheduler.pool.num_available * scheduler.pool.page_size
    submit(engine, [7] * 8, replace(PARAMS, max_tokens=min(500, capacity)))
    assert scheduler.lacks_lent_pages
    scheduler.take_back_pages()
    finish(engine)
    assert scheduler.pool.num_held == 0


def test_idle_engine_warms_up_first_and_survives_an_error_in_it(new: Callable[..., LLM]) -> None:
    engine = new().engine
    left = [True, True, False]
    engine.background.warm_up = lambda: left.pop(0)
    while engine.background.warm_up is not None:
        assert engine.has_background_work and engine.work_in_background() == []
    assert not left

    def fail() -> bool:
        raise ValueError("no graph")

    engine.background.warm_up = fail
    engine.work_in_background()
    assert engine.background.warm_up is None and engine.has_background_work  # the certificate is left
