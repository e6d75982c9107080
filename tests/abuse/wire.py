"""A small asynchronous HTTP/1.1 client that can do what well-behaved clients do not: leave before the
response, send half a request, read slowly.

httpx sends complete requests only, and takes more CPU time for each than the server.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

LOST = 0  # the status of a connection that ended before a response
LEFT = -1  # the status of a request whose client left


@dataclass(frozen=True)
class Target:
    """A running server, as one client sees it. source: the address it is called from."""

    url: str
    key: str | None = None
    model: str | None = None
    max_model_len: int = 512
    source: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        local = None if self.source is None else (self.source, 0)
        return await asyncio.open_connection(*self.address, local_addr=local)

    def head(self, method: str, path: str, num_bytes: int, headers: dict[str, str] | None = None) -> bytes:
        host, port = self.address
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {num_bytes}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


async def request(
    target: Target,
    path: str,
    body: Any = None,
    *,
    leave_after: float | None = None,
    headers: dict[str, str] | None = None,
) -> int:
    """Send a request, read the whole response, return its status. leave_after: reset the connection
    after so many seconds."""
    content = b"" if body is None else encode(body)
    head = target.head("GET" if body is None else "POST", path, len(content), headers)
    try:
        reader, writer = await target.connect()
    except OSError:
        return LOST
    try:
        async with asyncio.timeout(leave_after):
            writer.write(head + content)
            await writer.drain()
            status = await read_status(reader)
            while await reader.read(1 << 16):
                pass
            return status
    except TimeoutError:
        return LEFT
    except OSError:
        return LOST
    finally:
        writer.transport.abort()


async def read_status(reader: asyncio.StreamReader) -> int:
    """The status of a response, once its head is there."""
    line = await reader.readline()
    with contextlib.suppress(IndexError, ValueError):
        return int(line.split(b" ")[1])
    return LOST


async def hold(target: Target, sent: bytes, seconds: float, *, trickle: bytes = b"") -> int:
    """Send the beginning of a request and hold the connection; trickle: a byte of it every 0.2 s."""
    try:
        reader, writer = await target.connect()
    except OSError:
        await asyncio.sleep(0.01)
        return LOST
    try:
        writer.write(sent)
        for at in range(max(1, round(seconds / 0.2))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    return await read_status(reader)
            writer.write(trickle[at : at + 1])
        return LEFT
    except OSError:
        return LOST
    finally:
        writer.transport.abort()
