"""A server to measure: `holdfast serve` as a child process on a free port."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import Address, BadStatus, BrokenStream
from holdfast.errors import EngineStopped

_START_SECONDS = 300.0  # a first start certifies, and may download the model
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServerChild:
    """A child process that serves at this address."""

    address: Address
    pid: int


@asynccontextmanager
async def start_server(arguments: Sequence[str], api_key: str | None = None) -> AsyncIterator[ServerChild]:
    """Run `holdfast serve` while the block runs.

    The key is passed in the environment: arguments are public.
    """
    address = Address(_HOST, free_port())
    command = [sys.executable, "-m", "holdfast", "serve", *arguments]
    command += ["--host", address.host, "--port", str(address.port)]
    environment = dict(os.environ) | ({"HOLDFAST_API_KEY": api_key} if api_key is not None else {})
    async with run_server(command, address, environment) as child:
        yield child


@asynccontextmanager
async def run_server(
    command: Sequence[str], address: Address, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ServerChild]:
    """Run this command, which serves at this address, while the block runs."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def log_tail() -> str:
            log.seek(0)
            return " ".join(log.read()[-2000:].decode(errors="replace").split())

        try:
            await _wait_until_healthy(child, address, log_tail)
            yield ServerChild(address, child.pid)
            if child.poll() is not None:
                raise EngineStopped(f"the server ended with {child.returncode}: {log_tail()}")
        finally:
            _stop(child)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


async def _wait_until_healthy(
    child: subprocess.Popen[bytes], address: Address, log_tail: Callable[[], str]
) -> None:
    until = time.perf_counter() + _START_SECONDS
    async with Client(address) as client:
        while True:
            if child.poll() is not None:
                raise EngineStopped(
                    f"the server did not start, it ended with {child.returncode}: {log_tail()}"
                )
            with contextlib.suppress(BrokenStream, BadStatus):
                await client.request("GET", "/health")
                return
            if time.perf_counter() > until:
                raise EngineStopped(f"the server is not up after {_START_SECONDS:g} s: {log_tail()}")
            await asyncio.sleep(_POLL_SECONDS)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Terminate the process; kill it if it does not end in time."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
