"""Links to an engine process that has no model (`fake_engine`), for tests of the front's side of the channel."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psutil

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.server.ipc.engine_link import EngineLink, Listener
from holdfast.server.ipc.response_stream import ResponseStream
from support.fake_engine import Prompt
from support.serving import HERE

PATIENCE = 20.0


def command(start: str = "ready") -> tuple[str, ...]:
    return sys.executable, str(HERE / "fake_engine.py"), start


def listener(**told: Callable[..., None]) -> Listener:
    def ignore(*_: Any) -> None:
        pass

    return Listener(**{name: told.get(name, ignore) for name in ("progress", "traced", "status")})


@asynccontextmanager
async def linked(start: str = "ready", **told: Callable[..., None]) -> AsyncIterator[EngineLink]:
    """A link, ended afterwards; its process must be gone then."""
    link = await EngineLink.start(EngineConfig(), listener(**told), ("text", "info"), command(start))
    try:
        async with asyncio.timeout(PATIENCE):
            await link.settled.wait()
            yield link
    finally:
        await link.stop()
    assert not psutil.pid_exists(link.pid)


async def ask(link: EngineLink, prompt: Prompt) -> ResponseStream:
    """A ticket that is over."""
    bell = asyncio.Event()
    ticket = link.submit(bell, [prompt], SamplingParams())
    while not ticket.is_over:
        await bell.wait()
        bell.clear()
    return ticket


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())
