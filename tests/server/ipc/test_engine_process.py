"""An engine process from the frontend's side, with a fake engine that sends wrong messages, hangs and dies."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped, HoldfastError, NotReady, PromptTooLong
from holdfast.server.ipc import engine_process
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engine_process import EngineProcess, ProcessPort
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.ipc.response_stream import ResponseStream
from support.engine_ports import LOG, PATIENCE, ask, command, connected, new_port, request_of
from support.fake_engine import READY, Prompt

pytestmark = pytest.mark.anyio

SHORT = 0.3  # instead of the seconds an engine may take to exit
MAX_DEATHS = 2  # a process takes half a second to start


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(engine_process, "MAX_DEATHS", MAX_DEATHS)


# The port of one process


async def test_requests_are_answered_or_refused_and_repeated_messages_ignored() -> None:
    async with connected() as port:
        stream = await ask(port.requests, Prompt.ANSWER_TWICE)
        assert (stream.was_accepted, [delta.text for delta in stream.deltas]) == (True, ["yes"])
        assert isinstance((await ask(port.requests, Prompt.REFUSE)).error, PromptTooLong)
        assert (await port.requests.wait_for_fingerprint()).digest == "abc"
        assert (await port.status()).num_pages == 100, "everything after the answers has been read"
        assert len(stream.deltas) == 1 and stream.result is not None and stream.error is None
        assert port.requests.num_live == 0


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt.GARBAGE,
        Prompt.WRONG_TYPE,
        Prompt.TOO_LONG,
        Prompt.CUT_OFF,
        Prompt.HANG_UP,
        Prompt.DIE,
        Prompt.UNASKED_STATUS,
    ],
)
async def test_invalid_message_or_death_closes_the_port(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that waits fails, and the process ends, whatever it does."""
    monkeypatch.setattr(engine_process, "_EXIT_SECONDS", SHORT)

    async with connected() as port:
        updated = asyncio.Event()
        waiting = port.requests.submit(updated, request_of(Prompt.SILENCE))
        stream = await ask(port.requests, prompt)
        assert isinstance(stream.error, EngineStopped) and isinstance(waiting.error, EngineStopped)
        assert port.closed.is_set() and port.requests.num_live == 0
        with pytest.raises(EngineStopped):
            port.requests.submit(updated, request_of(Prompt.ANSWER))
        with pytest.raises(EngineStopped):
            await port.status()
        await port.wait_ended()
        assert not psutil.pid_exists(port.pid)


async def test_status_request_fails_when_the_engine_dies() -> None:
    async with connected() as port:
        os.kill(port.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(port.status())
        await asyncio.sleep(0)
        assert port.unanswered_seconds > 0
        port.kill()
        with pytest.raises(EngineStopped):
            await waiting


async def test_engine_that_does_not_exit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "_EXIT_SECONDS", SHORT)

    async with connected() as port:
        os.kill(port.pid, signal.SIGSTOP)
        await port.stop()
        assert port.closed.is_set() and port.exit_status == "signal 9"


async def test_loading_engine_is_killed_at_once() -> None:
    reported = asyncio.Event()
    port = new_port(on_progress=lambda *_: reported.set())
    await port.start(command("loads"), EngineConfig(), LOG)
    async with asyncio.timeout(PATIENCE):
        await reported.wait()
    async with asyncio.timeout(engine_process._EXIT_SECONDS - 1):
        await port.stop()
    assert port.ready is None and port.exit_status == "signal 9"


async def test_unencodable_request_leaves_no_stream_nor_does_a_cancelled_one() -> None:
    async with connected() as port:
        with pytest.raises(OverflowError):
            port.requests.submit(asyncio.Event(), request_of(1 << 70))
        stream = port.requests.submit(asyncio.Event(), request_of(Prompt.SILENCE))
        stream.cancel(HoldfastError("enough"))
        assert port.requests.num_live == 0 and str(stream.error) == "enough"
        assert (await ask(port.requests, Prompt.ANSWER)).result is not None


async def test_ports_leak_no_descriptors() -> None:
    async with connected():
        pass
    gc.collect()  # what earlier tests left open is not closed in between
    before = psutil.Process().num_fds()
    for start in ("ready", "dies", "fails"):
        async with connected(start):
            pass
    with pytest.raises(FileNotFoundError):
        await new_port().start(("/no/such/program",), EngineConfig(), LOG)
    assert psutil.Process().num_fds() == before


# One process after the other


class Watched:
    """An engine process and its callbacks."""

    def __init__(self, *words: str, **settings: Any) -> None:
        self.ports: asyncio.Queue[ProcessPort] = asyncio.Queue()
        self.num_deaths = self.num_hangs = 0
        callbacks = EngineCallbacks(
            on_ready=lambda: self.ports.put_nowait(self.engine.port),
            on_death=lambda how, num_requests: self._count("num_deaths"),
            on_hang=self._on_hang,
        )
        requests = RequestTable(resumes=settings.pop("resumes", True), callbacks=callbacks)
        self.engine = EngineProcess(
            EngineConfig(), callbacks, command=words or command(), requests=requests, **settings
        )

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def _on_hang(self) -> None:
        self._count("num_hangs")
        self.set_hang_timeout(PATIENCE)

    def set_hang_timeout(self, seconds: float) -> None:
        """Until a process hangs."""
        self.engine._hang_timeout = seconds

    def submit(self, prompt: Prompt) -> ResponseStream:
        return self.engine.requests.submit(asyncio.Event(), request_of(prompt))


@asynccontextmanager
async def supervised(*words: str, **settings: Any) -> AsyncIterator[Watched]:
    watched = Watched(*words, **settings)
    running = asyncio.create_task(watched.engine.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield watched
    finally:
        await watched.engine.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def next_delta(stream: ResponseStream) -> None:
    num_deltas = len(stream.deltas)
    while len(stream.deltas) == num_deltas:
        await asyncio.sleep(0.01)


async def test_dead_engine_is_restarted_and_leaves_nothing_to_the_next() -> None:
    async with supervised() as watched:
        first = await watched.ports.get()
        assert watched.engine.is_ready and watched.engine.port is first
        assert (await ask(watched.engine.requests, Prompt.ANSWER)).request_id == 1
        os.kill(first.pid, signal.SIGKILL)
        await first.closed.wait()
        assert not watched.engine.is_ready
        with pytest.raises(NotReady) as refused:
            _ = watched.engine.port
        assert refused.value.retry_after > 0
        second = await watched.ports.get()
        stream = await ask(watched.engine.requests, Prompt.ANSWER)
        assert stream.result is not None and stream.request_id == 2, "ids go on"
        assert watched.num_deaths == 1 and second.pid != first.pid


async def test_engine_without_socket_is_replaced_only_after_it_exited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two engines at once would need twice the memory."""
    monkeypatch.setattr(engine_process, "_EXIT_SECONDS", SHORT)

    async with supervised() as watched:
        first = await watched.ports.get()
        watched.submit(Prompt.HANG_UP)
        await watched.ports.get()
        assert not psutil.pid_exists(first.pid)


@pytest.mark.parametrize(
    ("words", "says"), [(command("dies"), "exit code 3"), (("/no/such/program",), "could not be started")]
)
async def test_engine_that_keeps_dying_is_given_up(words: tuple[str, ...], says: str) -> None:
    watched = Watched(*words)
    with pytest.raises(EngineStopped, match=says):
        await watched.engine.run()
    assert watched.num_deaths == MAX_DEATHS - 1 and watched.ports.empty()


async def test_old_deaths_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "WITHIN_SECONDS", 0.0)

    async with supervised() as watched:
        for _ in range(MAX_DEATHS + 1):
            (await watched.ports.get()).kill()
        await watched.ports.get()
        assert watched.engine.is_ready


async def test_refused_configuration_is_not_retried() -> None:
    watched = Watched(*command("fails"))
    with pytest.raises(ConfigError, match="this cannot be loaded"):
        await watched.engine.run()
    await watched.engine.stop()
    assert watched.num_deaths == 0


async def test_hanging_engine_is_killed_and_its_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is short for the process that hangs only: on a busy machine any may be silent for so
    long."""
    monkeypatch.setattr(engine_process, "_POLL_SECONDS", 0.05)

    async with supervised() as watched:
        port = await watched.ports.get()
        stream = watched.submit(Prompt.STREAM)
        await next_delta(stream)
        os.kill(port.pid, signal.SIGSTOP)
        watched.set_hang_timeout(0.2)
        second = await watched.ports.get()
        assert second.pid != port.pid and watched.num_hangs == 1
        await next_delta(stream)
        assert stream.error is None and stream.num_resumes == 1


async def test_deaths_between_which_requests_progress_do_not_count() -> None:
    async with supervised() as watched:
        await watched.ports.get()
        stream = watched.submit(Prompt.STREAM)
        for _ in range(MAX_DEATHS + 1):
            await next_delta(stream)
            watched.engine.port.kill()
            await watched.ports.get()
        assert stream.error is None and stream.num_resumes == MAX_DEATHS + 1


async def test_requests_wait_for_a_restart_but_not_for_the_first_start() -> None:
    async with supervised() as watched:
        assert not watched.engine.requests.is_open
        port = await watched.ports.get()
        port.kill()
        await port.closed.wait()
        assert watched.engine.requests.is_open and not watched.engine.is_ready
        watched.engine.load_seconds = 30.0
        watched.engine._started -= 1000.0  # when the process that died began to load
        assert watched.engine.retry_after == 30
        stream = await ask(watched.engine.requests, Prompt.ANSWER)
        assert stream.result is not None and stream.num_resumes == 0


def test_without_resumes_no_request_waits_for_a_restart() -> None:
    requests = Watched(resumes=False).engine.requests
    requests.ready = READY
    assert not requests.is_open


async def test_stop_during_start_leaves_no_process() -> None:
    before = set(psutil.Process().children())
    watched = Watched(*command("loads"))
    running = asyncio.create_task(watched.engine.run())
    await asyncio.sleep(0)  # it is being started
    await watched.engine.stop()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    left = set(psutil.Process().children()) - before
    psutil.wait_procs(left, PATIENCE)
    assert not any(one.is_running() for one in left)
