"""One life of an engine process, from the front's side, with an engine that says odd things and then does odd things."""

import asyncio
import os
import signal

import psutil
import pytest

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.errors import EngineStopped, HoldfastError, PromptTooLong
from holdfast.server.ipc import engine_link
from holdfast.server.ipc.engine_link import EngineLink
from support.engine_links import PATIENCE, ask, command, linked, listener, run
from support.fake_engine import SEED, Prompt

SHORT = 0.3  # instead of the seconds an engine may take to leave


def test_a_request_is_answered() -> None:
    async def work() -> None:
        async with linked() as link:
            ticket = await ask(link, Prompt.ANSWER)
            assert (ticket.seed, [piece.text for piece in ticket.pieces]) == (SEED, ["yes"])
            assert ticket.outcome is not None and link.num_requests == 0
            assert (await link.named()).digest == "abc"
            assert (await link.status()).num_pages == 100

    run(work)


def test_what_is_refused_fails_with_the_error_the_engine_named() -> None:
    async def work() -> None:
        async with linked() as link:
            assert isinstance((await ask(link, Prompt.REFUSE)).error, PromptTooLong)
            assert (await ask(link, Prompt.ANSWER)).outcome is not None

    run(work)


def test_what_comes_twice_is_taken_once() -> None:
    async def work() -> None:
        async with linked() as link:
            ticket = await ask(link, Prompt.ANSWER_TWICE)
            await link.status()  # whatever came behind the answer has been read
            assert len(ticket.pieces) == 1 and ticket.error is None
            assert (await ask(link, Prompt.ANSWER)).outcome is not None

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
def test_an_engine_that_cannot_be_understood_is_gone(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody who waits is told, and the process ends, whatever it does."""
    monkeypatch.setattr(engine_link, "_LEAVING_SECONDS", SHORT)

    async def work() -> None:
        async with linked() as link:
            bell = asyncio.Event()
            waiting = link.submit(bell, [Prompt.SILENCE], SamplingParams())
            ticket = await ask(link, prompt)
            assert isinstance(ticket.error, EngineStopped) and isinstance(waiting.error, EngineStopped)
            assert link.gone.is_set() and link.num_requests == 0
            with pytest.raises(EngineStopped):
                link.submit(bell, [Prompt.ANSWER], SamplingParams())
            with pytest.raises(EngineStopped):
                await link.status()
            await link.ended()
            assert not psutil.pid_exists(link.pid)

    run(work)


def test_whoever_asks_for_the_status_of_an_engine_that_dies_is_told() -> None:
    async def work() -> None:
        async with linked() as link:
            os.kill(link.pid, signal.SIGSTOP)
            asking = asyncio.create_task(link.status())
            await asyncio.sleep(0)
            assert link.unanswered_seconds > 0
            link.kill()
            with pytest.raises(EngineStopped):
                await asking

    run(work)


def test_an_engine_that_does_not_leave_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "_LEAVING_SECONDS", SHORT)

    async def work() -> None:
        async with linked() as link:
            os.kill(link.pid, signal.SIGSTOP)
            await link.stop()
            assert link.gone.is_set() and link.end == "signal 9"

    run(work)


def test_one_that_still_loads_is_ended_at_once() -> None:
    async def work() -> None:
        told = asyncio.Event()
        link = await EngineLink.start(
            EngineConfig(), listener(progress=lambda *_: told.set()), ("text", "info"), command("loads")
        )
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        async with asyncio.timeout(engine_link._LEAVING_SECONDS - 1):
            await link.stop()
        assert link.ready is None and link.end == "signal 9"

    run(work)


def test_an_engine_that_refuses_its_configuration_says_why() -> None:
    async def work() -> None:
        async with linked("unfit") as link:
            assert link.unfit == "this cannot be loaded" and link.ready is None

    run(work)


def test_what_cannot_be_said_leaves_no_ticket() -> None:
    async def work() -> None:
        async with linked() as link:
            with pytest.raises(OverflowError):
                link.submit(asyncio.Event(), [1 << 70], SamplingParams())
            assert link.num_requests == 0
            assert (await ask(link, Prompt.ANSWER)).outcome is not None

    run(work)


def test_a_ticket_that_is_left_is_forgotten() -> None:
    async def work() -> None:
        async with linked() as link:
            ticket = link.submit(asyncio.Event(), [Prompt.SILENCE], SamplingParams())
            ticket.leave(HoldfastError("enough"))
            assert link.num_requests == 0 and str(ticket.error) == "enough"

    run(work)


def test_links_leave_no_descriptors_behind() -> None:
    async def work() -> None:
        async with linked():
            pass
        before = psutil.Process().num_fds()
        for start in ("ready", "dies", "unfit"):
            async with linked(start):
                pass
        with pytest.raises(FileNotFoundError):
            await EngineLink.start(EngineConfig(), listener(), ("text", "info"), ("/no/such/program",))
        assert psutil.Process().num_fds() == before

    run(work)
