"""An engine process from the frontend's side, with a fake engine that sends wrong messages, hangs and dies."""

import asyncio
import gc
import os
import signal

import psutil
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import EngineStopped, HoldfastError, PromptTooLong
from holdfast.server.ipc import engine_link
from holdfast.server.ipc.engine_link import EngineCallbacks, EngineLink
from support.engine_links import PATIENCE, ask, command, linked, request_of, run
from support.fake_engine import Prompt

SHORT = 0.3  # instead of the seconds an engine may take to exit


def test_request_is_answered() -> None:
    async def work() -> None:
        async with linked() as link:
            stream = await ask(link, Prompt.ANSWER)
            assert (stream.was_accepted, [delta.text for delta in stream.deltas]) == (True, ["yes"])
            assert stream.result is not None and link.requests.num_live == 0
            assert (await link.wait_for_fingerprint()).digest == "abc"
            assert (await link.status()).num_pages == 100

    run(work)


def test_refused_request_fails_with_the_error_of_that_code() -> None:
    async def work() -> None:
        async with linked() as link:
            assert isinstance((await ask(link, Prompt.REFUSE)).error, PromptTooLong)
            assert (await ask(link, Prompt.ANSWER)).result is not None

    run(work)


def test_repeated_messages_are_ignored() -> None:
    async def work() -> None:
        async with linked() as link:
            stream = await ask(link, Prompt.ANSWER_TWICE)
            await link.status()  # everything after the answer has been read
            assert len(stream.deltas) == 1 and stream.error is None
            assert (await ask(link, Prompt.ANSWER)).result is not None

    run(work)


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
def test_invalid_message_or_death_closes_the_link(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that waits fails, and the process ends, whatever it does."""
    monkeypatch.setattr(engine_link, "_EXIT_SECONDS", SHORT)

    async def work() -> None:
        async with linked() as link:
            updated = asyncio.Event()
            waiting = link.requests.submit(updated, request_of(Prompt.SILENCE))
            stream = await ask(link, prompt)
            assert isinstance(stream.error, EngineStopped) and isinstance(waiting.error, EngineStopped)
            assert link.closed.is_set() and link.requests.num_live == 0
            with pytest.raises(EngineStopped):
                link.requests.submit(updated, request_of(Prompt.ANSWER))
            with pytest.raises(EngineStopped):
                await link.status()
            await link.wait_ended()
            assert not psutil.pid_exists(link.pid)

    run(work)


def test_status_request_fails_when_the_engine_dies() -> None:
    async def work() -> None:
        async with linked() as link:
            os.kill(link.pid, signal.SIGSTOP)
            waiting = asyncio.create_task(link.status())
            await asyncio.sleep(0)
            assert link.unanswered_seconds > 0
            link.kill()
            with pytest.raises(EngineStopped):
                await waiting

    run(work)


def test_engine_that_does_not_exit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "_EXIT_SECONDS", SHORT)

    async def work() -> None:
        async with linked() as link:
            os.kill(link.pid, signal.SIGSTOP)
            await link.stop()
            assert link.closed.is_set() and link.exit_status == "signal 9"

    run(work)


def test_loading_engine_is_killed_at_once() -> None:
    async def work() -> None:
        reported = asyncio.Event()
        link = await EngineLink.start(
            EngineConfig(),
            EngineCallbacks(on_progress=lambda *_: reported.set()),
            ("text", "info"),
            command("loads"),
        )
        async with asyncio.timeout(PATIENCE):
            await reported.wait()
        async with asyncio.timeout(engine_link._EXIT_SECONDS - 1):
            await link.stop()
        assert link.ready is None and link.exit_status == "signal 9"

    run(work)


def test_refused_configuration_is_reported() -> None:
    async def work() -> None:
        async with linked("fails") as link:
            assert link.startup_error == "this cannot be loaded" and link.ready is None

    run(work)


def test_unencodable_request_leaves_no_stream() -> None:
    async def work() -> None:
        async with linked() as link:
            with pytest.raises(OverflowError):
                link.requests.submit(asyncio.Event(), request_of(1 << 70))
            assert link.requests.num_live == 0
            assert (await ask(link, Prompt.ANSWER)).result is not None

    run(work)


def test_cancelled_stream_is_removed() -> None:
    async def work() -> None:
        async with linked() as link:
            stream = link.requests.submit(asyncio.Event(), request_of(Prompt.SILENCE))
            stream.cancel(HoldfastError("enough"))
            assert link.requests.num_live == 0 and str(stream.error) == "enough"

    run(work)


def test_links_leak_no_descriptors() -> None:
    async def work() -> None:
        async with linked():
            pass
        gc.collect()  # what earlier tests left open is not closed in between
        before = psutil.Process().num_fds()
        for start in ("ready", "dies", "fails"):
            async with linked(start):
                pass
        with pytest.raises(FileNotFoundError):
            await EngineLink.start(EngineConfig(), EngineCallbacks(), ("text", "info"), ("/no/such/program",))
        assert psutil.Process().num_fds() == before

    run(work)
