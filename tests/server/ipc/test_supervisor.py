"""The supervisor restarts an engine that dies, and gives up one that cannot run."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineCrashed, EngineStopped
from holdfast.server.errors import ApiError
from holdfast.server.ipc import supervisor as supervisor_module
from holdfast.server.ipc.engine_link import EngineCallbacks, EngineLink
from holdfast.server.ipc.live_requests import MAX_LONE_DEATHS, LiveRequests, ResumeCallbacks
from holdfast.server.ipc.response_stream import ResponseStream
from holdfast.server.ipc.supervisor import MAX_DEATHS, Supervisor
from support.engine_links import PATIENCE, ask, command, request_of, run
from support.fake_engine import Prompt


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.01)


class Watched:
    """A supervisor and its callbacks."""

    def __init__(self, *words: str, **settings: Any) -> None:
        self.links: asyncio.Queue[EngineLink] = asyncio.Queue()
        self.num_deaths = self.num_hangs = self.num_crashed = 0
        callbacks = EngineCallbacks(
            on_ready=self.links.put_nowait,
            on_death=lambda how, num_requests: self._count("num_deaths"),
            on_hang=self._on_hang,
            resume=ResumeCallbacks(on_crash=lambda: self._count("num_crashed")),
        )
        requests = LiveRequests(resumes=settings.pop("resumes", True), callbacks=callbacks.resume)
        self.supervisor = Supervisor(
            EngineConfig(), callbacks, command=words or command(), requests=requests, **settings
        )

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def _on_hang(self) -> None:
        self._count("num_hangs")
        self.set_hang_timeout(PATIENCE)

    def set_hang_timeout(self, seconds: float) -> None:
        """Until a process hangs."""
        self.supervisor._hang_timeout = seconds

    def submit(self, prompt: Prompt) -> ResponseStream:
        return self.supervisor.requests.submit(asyncio.Event(), request_of(prompt))

    def submit_first(self, link: EngineLink) -> ResponseStream:
        assert self.supervisor.link is link
        return self.submit(Prompt.STREAM)


@asynccontextmanager
async def supervised(*words: str, **settings: Any) -> AsyncIterator[Watched]:
    watched = Watched(*words, **settings)
    running = asyncio.create_task(watched.supervisor.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield watched
    finally:
        await watched.supervisor.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_dead_engine_is_restarted() -> None:
    async def work() -> None:
        async with supervised() as watched:
            first = await watched.links.get()
            assert watched.supervisor.is_ready and watched.supervisor.link is first
            assert (await ask(first, Prompt.ANSWER)).request_id == 1
            os.kill(first.pid, signal.SIGKILL)
            await first.closed.wait()
            assert not watched.supervisor.is_ready
            with pytest.raises(ApiError) as refused:
                _ = watched.supervisor.link
            assert refused.value.status == 503 and refused.value.headers["Retry-After"]
            second = await watched.links.get()
            stream = await ask(second, Prompt.ANSWER)
            assert stream.result is not None and stream.request_id == 2, "ids go on"
            assert watched.num_deaths == 1 and second.pid != first.pid

    run(work)


def test_engine_without_socket_is_replaced_only_after_it_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines at once would need twice the memory."""
    monkeypatch.setattr("holdfast.server.ipc.engine_link._EXIT_SECONDS", 0.3)

    async def work() -> None:
        async with supervised() as watched:
            first = await watched.links.get()
            await ask(first, Prompt.HANG_UP)
            await watched.links.get()
            assert not psutil.pid_exists(first.pid)

    run(work)


def test_engine_that_keeps_dying_is_given_up() -> None:
    async def work() -> None:
        watched = Watched(*command("dies"))
        with pytest.raises(EngineStopped, match="exit code 3"):
            await watched.supervisor.run()
        assert watched.num_deaths == MAX_DEATHS - 1 and watched.links.empty()

    run(work)


def test_old_deaths_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "WITHIN_SECONDS", 0.0)

    async def work() -> None:
        async with supervised() as watched:
            for _ in range(MAX_DEATHS + 1):
                (await watched.links.get()).kill()
            await watched.links.get()
            assert watched.supervisor.is_ready

    run(work)


def test_process_that_cannot_start_is_retried_then_given_up() -> None:
    async def work() -> None:
        watched = Watched("/no/such/program")
        with pytest.raises(EngineStopped, match="could not be started"):
            await watched.supervisor.run()
        assert watched.num_deaths == MAX_DEATHS - 1

    run(work)


def test_refused_configuration_is_not_retried() -> None:
    async def work() -> None:
        watched = Watched(*command("fails"))
        with pytest.raises(ConfigError, match="this cannot be loaded"):
            await watched.supervisor.run()
        await watched.supervisor.stop()
        assert watched.num_deaths == 0

    run(work)


def test_hanging_engine_is_killed_and_its_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is short for the process that hangs only: on a busy machine any may be silent for so
    long."""
    monkeypatch.setattr(supervisor_module, "_POLL_SECONDS", 0.05)

    async def work() -> None:
        async with supervised() as watched:
            link = await watched.links.get()
            stream = watched.submit(Prompt.STREAM)
            while not stream.deltas:
                await asyncio.sleep(0.01)
            os.kill(link.pid, signal.SIGSTOP)
            watched.set_hang_timeout(0.2)
            second = await watched.links.get()
            assert second.pid != link.pid and watched.num_hangs == 1
            num_deltas = len(stream.deltas)
            while len(stream.deltas) == num_deltas:
                await asyncio.sleep(0.01)
            assert stream.error is None and stream.num_resumes == 1

    run(work)


def test_engine_that_kills_itself_for_one_request_gives_up_that_request_only() -> None:
    async def work() -> None:
        async with supervised() as watched:
            await watched.links.get()
            streaming, poison = watched.submit(Prompt.STREAM), watched.submit(Prompt.DIE)
            while not poison.is_over:
                await asyncio.sleep(0.01)
            assert isinstance(poison.error, EngineCrashed)
            num_deltas = len(streaming.deltas)
            while len(streaming.deltas) == num_deltas:
                await asyncio.sleep(0.01)
            assert streaming.error is None and watched.num_deaths == MAX_LONE_DEATHS + 1
            assert watched.num_crashed == 1

    run(work)


def test_deaths_between_which_requests_progress_do_not_count() -> None:
    async def work() -> None:
        async with supervised() as watched:
            stream = watched.submit_first(await watched.links.get())
            for _ in range(MAX_DEATHS + 1):
                num_deltas = len(stream.deltas)
                while len(stream.deltas) == num_deltas:
                    await asyncio.sleep(0.01)
                watched.supervisor.link.kill()
                await watched.links.get()
            assert stream.error is None and stream.num_resumes == MAX_DEATHS + 1

    run(work)


def test_requests_wait_for_a_restart_but_not_for_the_first_start() -> None:
    async def work() -> None:
        async with supervised() as watched:
            with pytest.raises(ApiError) as refused:
                _ = watched.supervisor.ready
            assert (refused.value.status, refused.value.code) == (503, "engine_not_ready")
            link = await watched.links.get()
            link.kill()
            await link.closed.wait()
            assert watched.supervisor.ready.max_num_seqs == 4
            watched.supervisor.load_seconds = 30.0
            watched.supervisor._started -= 1000.0  # when the process that died began to load
            assert watched.supervisor.retry_after == 30
            stream = watched.submit(Prompt.ANSWER)
            while not stream.is_over:
                await asyncio.sleep(0.01)
            assert stream.result is not None and stream.num_resumes == 0

    run(work)


def test_without_resume_requests_fail_with_their_engine() -> None:
    async def work() -> None:
        async with supervised(resumes=False) as watched:
            link = await watched.links.get()
            stream = watched.submit(Prompt.STREAM)
            link.kill()
            await link.closed.wait()
            assert isinstance(stream.error, EngineStopped)
            with pytest.raises(ApiError):
                _ = watched.supervisor.ready

    run(work)


def test_stop_during_start_leaves_no_process() -> None:
    async def work() -> None:
        before = set(psutil.Process().children())
        watched = Watched(*command("loads"))
        running = asyncio.create_task(watched.supervisor.run())
        await asyncio.sleep(0)  # it is being started
        await watched.supervisor.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        left = set(psutil.Process().children()) - before
        psutil.wait_procs(left, PATIENCE)
        assert not any(one.is_running() for one in left)

    run(work)
