"""Ports of an engine process that has no model (`fake_engine`), for tests of the frontend's side of the connection."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil

from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engine_process import ProcessPort
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.ipc.response_stream import ResponseStream
from support.fake_engine import SEED, Prompt
from support.serving import HERE

PATIENCE = 20.0
LOG = ("text", "info")


def command(start: str = "ready") -> tuple[str, ...]:
    return sys.executable, str(HERE / "fake_engine.py"), start


def new_port(**callbacks: Callable[..., None]) -> ProcessPort:
    """A port whose requests do not outlive it. Its process is not started yet."""
    requests = RequestTable(resumes=False)
    port = ProcessPort(
        EngineCallbacks(**callbacks),
        requests,
        lambda: requests.set_ports([port], port.fingerprint, port.ready),
    )
    return port


@asynccontextmanager
async def connected(start: str = "ready", **callbacks: Callable[..., None]) -> AsyncIterator[ProcessPort]:
    """A port, ended afterwards; its process must be gone then."""
    port = new_port(**callbacks)
    await port.start(command(start), EngineConfig(), LOG)
    try:
        async with asyncio.timeout(PATIENCE):
            await port.settled.wait()
            yield port
    finally:
        await port.stop()
    assert not psutil.pid_exists(port.pid)


def request_of(token_id: int) -> Request:
    """A request with this prompt of one token."""
    return Request(0, (token_id,), SamplingParams(), SEED)


async def ask(requests: Any, prompt: Prompt) -> ResponseStream:
    """Submit a prompt and wait until its stream is over."""
    updated = asyncio.Event()
    stream: ResponseStream = requests.submit(updated, request_of(prompt))
    while not stream.is_over:
        await updated.wait()
        updated.clear()
    return stream
