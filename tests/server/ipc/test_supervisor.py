"""The supervisor restarts an engine that dies, and gives up one that cannot run."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.errors import ApiError
from holdfast.server.ipc import supervisor as supervisor_module
from holdfast.server.ipc.engine_link import EngineCallbacks, EngineLink
from holdfast.server.ipc.supervisor import MAX_DEATHS, Supervisor
from support.engine_links import PATIENCE, ask, command, run
from support.fake_engine import Prompt


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.01)


class Watched:
    """A supervisor and its callbacks."""

    def __init__(self, *words: str) -> None:
        self.links: asyncio.Queue[EngineLink] = asyncio.Queue()
        self.num_deaths = 0
        callbacks = EngineCallbacks(on_ready=self.links.put_nowait, on_death=self._count)
        self.supervisor = Supervisor(EngineConfig(), callbacks, command=words or command())

    def _count(self) -> None:
        self.num_deaths += 1


@asynccontextmanager
async def supervised(*words: str) -> AsyncIterator[Watched]:
    watched = Watched(*words)
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


def test_engine_that_does_not_answer_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_STUCK_SECONDS", 0.01)

    async def work() -> None:
        async with supervised() as watched:
            link = await watched.links.get()
            await link.status()
            assert not watched.supervisor.is_stuck
            os.kill(link.pid, signal.SIGSTOP)
            asking = asyncio.create_task(link.status())
            while not watched.supervisor.is_stuck:
                await asyncio.sleep(0.01)
            os.kill(link.pid, signal.SIGCONT)
            await asking
            assert not watched.supervisor.is_stuck

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
