"""An engine in a thread: submit, iterate, cancel, close."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.core.step_plan import StepPlan
from holdfast.engine.async_engine import AsyncEngine
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import EngineStopped, InvalidRequest, PromptTooLong

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, deterministic=True, logprobs=1)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True, deterministic=True)


def make(model: Path) -> Engine:
    return build(
        EngineConfig(str(model), dtype="fp32", max_pass_tokens=64, max_num_seqs=4, determinism="verify")
    )


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    return make(tiny_llama)


@pytest.fixture
def running(engine: Engine) -> Iterator[AsyncEngine]:
    with AsyncEngine(engine) as running:
        yield running
    engine.scheduler.prefix_cache.clear()
    engine.check()
    assert engine.scheduler.pool.num_held == 0


def test_deltas_join_to_the_result(running: AsyncEngine) -> None:
    handle = running.submit("the quick fox", PARAMS)
    deltas = list(handle)
    assert handle.result is not None
    assert "".join(delta.text for delta in deltas) == handle.result.text
    assert tuple(t for delta in deltas for t in delta.token_ids) == handle.result.token_ids
    assert handle.result.seed == handle.seed
    assert handle.wait() is handle.result


def test_many_async_readers(running: AsyncEngine) -> None:
    async def ask(prompt: str) -> tuple[str, Any]:
        handle = running.submit(prompt, PARAMS)
        text = ""
        async for delta in handle:
            text += delta.text
        return text, handle.result

    async def ask_all() -> list[tuple[str, Any]]:
        return await asyncio.gather(*(ask(f"the {n} fox") for n in range(7)))

    answers = asyncio.run(ask_all())
    for number, (text, result) in enumerate(answers):
        assert text == result.text
        alone = running.submit(f"the {number} fox", PARAMS).wait()
        assert (alone.token_ids, alone.logprobs) == (result.token_ids, result.logprobs)


def test_cancel_while_running_and_while_waiting(running: AsyncEngine) -> None:
    handles = [running.submit("the dog", LONG) for _ in range(6)]  # four run, two wait
    first = iter(handles[0])
    next(first)
    for handle in handles:
        handle.cancel()
    for handle in handles:
        assert handle.wait().finish_reason == "abort"
    assert running.submit("the dog", PARAMS).wait().finish_reason == "length"


def test_cancelled_reader_does_not_disturb_others(running: AsyncEngine) -> None:
    async def leave_early() -> int:
        handle, other = running.submit("the dog", LONG), running.submit("the fox", PARAMS)
        async for _ in handle:
            handle.cancel()
            break
        async for _ in other:
            pass
        assert other.result is not None
        return len(other.result.token_ids)

    assert asyncio.run(leave_early()) == 12


def test_cancel_after_the_end_does_nothing(running: AsyncEngine) -> None:
    handle = running.submit("the dog", PARAMS)
    result = handle.wait()
    handle.cancel()
    assert running.submit("the dog", PARAMS).wait().token_ids == result.token_ids


def test_invalid_request_raises_in_submit(running: AsyncEngine) -> None:
    good = running.submit("the dog", LONG)
    with pytest.raises(InvalidRequest, match="empty"):
        running.submit([], PARAMS)
    with pytest.raises(PromptTooLong):
        running.submit([5] * 600, PARAMS)
    good.cancel()
    assert good.wait().finish_reason == "abort"


def test_many_threads_submit_at_once(running: AsyncEngine) -> None:
    results: dict[int, Any] = {}

    def ask(number: int) -> None:
        results[number] = running.submit([number + 5, 9], PARAMS).wait()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {number: result.prompt_token_ids[0] for number, result in results.items()} == {
        number: number + 5 for number in range(8)
    }


def test_failed_pass_does_not_stop_the_thread(running: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = running.engine.runner

    class Once:
        broken = False

        def run(self, plan: StepPlan) -> Any:
            if not self.broken:
                self.broken = True
                raise RuntimeError("a cosmic ray")
            return inner.run(plan)

    monkeypatch.setattr(running.engine, "runner", Once())
    failed = running.submit("the dog", PARAMS).wait()
    assert (failed.finish_reason, failed.token_ids) == ("error", ())
    assert "a cosmic ray" in (failed.error or "")
    assert running.submit("the dog", PARAMS).wait().finish_reason == "length"


def test_close_stops_running_requests_and_refuses_new_ones(tiny_llama: Path) -> None:
    running = AsyncEngine(make(tiny_llama))
    handle = running.submit("the dog", LONG)
    next(iter(handle))
    running.close()
    running.close()
    with pytest.raises(EngineStopped, match="shut down"):
        handle.wait()
    with pytest.raises(EngineStopped, match="shut down"):
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


def wait_closed(running: AsyncEngine) -> None:
    """Wait until `close` has told the engine's thread to stop."""
    while True:
        with running._submit_lock:
            if running._closed:
                return
        time.sleep(0.001)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_request_not_started_yet_gets_engine_stopped(tiny_llama: Path, dies: bool) -> None:
    engine = make(tiny_llama)
    engine.runner = held = Held(engine.runner, dies)
    running = AsyncEngine(engine)
    first = running.submit("the dog", LONG)
    assert held.started.wait(30)
    late = running.submit("the fox", PARAMS)
    closing = threading.Thread(target=running.close)
    if not dies:
        closing.start()
        wait_closed(running)  # the pass ends after that
    held.go_on.set()
    running._thread.join(30)
    assert isinstance(outcome(first), EngineStopped)
    assert isinstance(outcome(late), EngineStopped)
    with pytest.raises(EngineStopped):
        running.submit("the dog", PARAMS)


def test_second_reader_gets_engine_stopped_too(tiny_llama: Path) -> None:
    asynchronous = AsyncEngine(make(tiny_llama))
    handle = asynchronous.submit([5, 6], SamplingParams(max_tokens=200, ignore_eos=True))
    asynchronous.close()
    for _ in range(2):
        with pytest.raises(EngineStopped):
            handle.wait()
