"""An engine in a thread: made, asked by several callers, cancelled, failed, closed, dropped."""

import gc
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.core.step_plan import StepPlan
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm import engine_thread
from holdfast.engine.llm.engine_thread import EngineThread
from holdfast.engine.llm.llm import LLM
from holdfast.errors import EngineStopped, InvalidRequest
from support.tiny import tiny_engine

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, deterministic=True, logprobs=1)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True, deterministic=True)


def make() -> Engine:
    return tiny_engine(EngineConfig(dtype="fp32", max_pass_tokens=64, max_num_seqs=4, determinism="verify"))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make()


@pytest.fixture
def running(engine: Engine) -> Iterator[EngineThread]:
    with EngineThread(lambda: engine) as running:
        yield running
    engine.scheduler.prefix_cache.clear()
    engine.check()
    assert engine.scheduler.pool.num_held == 0


def test_cancel_while_running_while_waiting_and_after_the_end(running: EngineThread) -> None:
    handles = [running.submit("the dog", LONG) for _ in range(6)]  # four run, two wait
    next(iter(handles[0]))
    for handle in handles:
        handle.cancel()
    for handle in handles:
        assert handle.wait().finish_reason == "abort"
        handle.cancel()
    assert running.submit("the dog", PARAMS).wait().finish_reason == "length"


def test_close_stops_running_requests_for_every_reader_and_refuses_new_ones() -> None:
    running = EngineThread(make)
    handle = running.submit("the dog", LONG)
    next(iter(handle))
    running.close()
    running.close()
    for _ in range(2):
        with pytest.raises(EngineStopped, match="closed"):
            handle.wait()
    with pytest.raises(EngineStopped, match="closed"):
        running.submit("the dog", PARAMS)


class Held:
    """A runner that blocks in its first pass until released; then it continues, or raises."""

    def __init__(self, inner: Any, dies: bool) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self._inner, self._dies = inner, dies

    def run(self, plan: StepPlan) -> Any:
        self.started.set()
        assert self.go_on.wait(30)
        if self._dies:
            raise SystemExit(3)
        return self._inner.run(plan)


def outcome(handle: Any) -> BaseException | None:
    """The outcome of `handle.wait()`, in a thread of its own so that the test cannot hang."""
    seen: list[BaseException | None] = []

    def wait() -> None:
        try:
            handle.wait()
        except BaseException as error:
            seen.append(error)
        else:
            seen.append(None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(10)
    assert seen, "the handle waits for ever"
    return seen[0]


@pytest.mark.parametrize("dies", [False, True])
def test_request_not_started_yet_gets_engine_stopped(dies: bool) -> None:
    engine = make()
    engine.runner = held = Held(engine.runner, dies)
    running = EngineThread(lambda: engine)
    first = running.submit("the dog", LONG)
    assert held.started.wait(30)
    late = running.submit("the fox", PARAMS)
    if not dies:
        threading.Thread(target=running.close).start()
        while running._end is None:  # the pass ends after that
            time.sleep(0.001)
    held.go_on.set()
    running._thread.join(30)
    why = "the engine failed: SystemExit: 3" if dies else "the engine is closed"
    for handle in (first, late):
        error = outcome(handle)
        assert isinstance(error, EngineStopped) and str(error) == why
    with pytest.raises(EngineStopped, match=why):
        running.submit("the dog", PARAMS)


def test_error_of_the_build_is_the_callers() -> None:
    def fail() -> Engine:
        raise InvalidRequest("no model")

    with pytest.raises(InvalidRequest, match="no model"):
        EngineThread(fail)


def test_interrupt_while_the_engine_is_built_ends_the_build() -> None:
    builders: list[threading.Thread] = []
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what runs in the background ignores it

    def build() -> Engine:
        builders.append(threading.current_thread())
        time.sleep(0.05)  # until the caller waits: a signal ends the wait
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while True:
            time.sleep(0.001)

    try:
        with pytest.raises(KeyboardInterrupt):
            EngineThread(build)
    finally:
        signal.signal(signal.SIGINT, before)
    builders[0].join(30)
    assert not builders[0].is_alive()


def test_dropped_model_ends_its_thread_and_frees_its_engine(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), dtype="fp32", max_pass_tokens=64)
    llm.generate("the fox", PARAMS)
    engine, thread = weakref.ref(llm.engine), llm._running._thread
    stream = llm.stream("the fox", PARAMS)
    del llm
    assert len(list(stream)) > 0, "a stream holds its model"
    assert thread.is_alive()
    del stream
    gc.collect()
    assert not thread.is_alive() and engine() is None


def test_engine_runs_only_while_a_caller_waits(auto_llm: LLM) -> None:
    with auto_llm.stream("the dog", LONG) as stream, auto_llm.stream("the fox", LONG) as other:
        next(stream)
        before = auto_llm.engine.counters.num_steps
        time.sleep(0.05)
        assert auto_llm.engine.counters.num_steps == before
        next(other)
        next(stream)  # it may have come with the other's
        auto_llm.generate("the cat", PARAMS)
        before = auto_llm.engine.counters.num_steps
        time.sleep(0.05)
        assert auto_llm.engine.counters.num_steps == before


def test_forked_child_is_refused(auto_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = auto_llm.stream("the dog", LONG)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(engine_thread.os, "getpid", lambda: -1)
        with pytest.raises(EngineStopped, match="forked"):
            list(stream)
        auto_llm._running.close()  # at the end of the child: there is nothing to wait for
    auto_llm._running.submit("the dog", PARAMS).wait()
    stream._handle.cancel()
    assert not auto_llm.engine.has_requests
