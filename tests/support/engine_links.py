"""Links to an engine process that has no model (`fake_engine`), for tests of the frontend's side of the connection."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psutil

from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.server.ipc.engine_link import EngineCallbacks, EngineLink
from holdfast.server.ipc.response_stream import ResponseStream
from support.fake_engine import SEED, Prompt
from support.serving import HERE

PATIENCE = 20.0


def command(start: str = "ready") -> tuple[str, ...]:
    return sys.executable, str(HERE / "fake_engine.py"), start


@asynccontextmanager
async def linked(start: str = "ready", **callbacks: Callable[..., None]) -> AsyncIterator[EngineLink]:
    """A link, ended afterwards; its process must be gone then."""
    link = await EngineLink.start(
        EngineConfig(), EngineCallbacks(**callbacks), ("text", "info"), command(start)
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await link.settled.wait()
            yield link
    finally:
        await link.stop()
    assert not psutil.pid_exists(link.pid)


def request_of(token_id: int) -> Request:
    """A request with this prompt of one token."""
    return Request(0, (token_id,), SamplingParams(), SEED)


async def ask(link: EngineLink, prompt: Prompt) -> ResponseStream:
    """Submit a prompt and wait until its stream is over."""
    updated = asyncio.Event()
    stream = link.requests.submit(updated, request_of(prompt))
    while not stream.is_over:
        await updated.wait()
        updated.clear()
    return stream


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())
