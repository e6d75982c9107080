"""uvicorn with our protocol: absolute targets, pipelined requests, clients that leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.datastructures import Headers

from holdfast.server.main import HttpProtocol

pytestmark = pytest.mark.anyio


class App:
    """Answers with the path and the Host header; at /wait only once the client has left."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.waiting = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"].decode()
        if scope["path"] == "/wait":
            self.waiting.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.append(query)
            return
        body = f"{scope['path']} {query} {Headers(scope=scope).getlist('host')}".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(app: App) -> AsyncIterator[Wire]:
    config = uvicorn.Config(app, http=HttpProtocol, port=0, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield reader, writer
        writer.close()
    finally:
        server.force_exit = True
        await server.shutdown()


def get(target: str, host: str = "localhost") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def body(wire: Wire) -> str:
    async with asyncio.timeout(10):
        head = (await wire[0].readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        return (await wire[0].readexactly(length)).decode()


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/a", "/a  ['localhost']"),
        ("http://evil/a", "/a  ['evil']"),
        ("http://evil:81/a?b", "/a b ['evil:81']"),
        ("http://[::1]:81/a", "/a  ['[::1]:81']"),
        ("http://user@evil/a", "/a  ['evil']"),
    ],
)
async def test_host_of_an_absolute_target_counts(target: str, seen: str) -> None:
    async with connected(App()) as wire:
        wire[1].write(get(target))
        assert await body(wire) == seen


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected(App()) as wire:
        wire[1].write(b"".join(get(f"/{number}") for number in range(50)))
        wire[1].write(get("/50")[:9])
        await asyncio.sleep(0.01)
        wire[1].write(get("/50")[9:])
        assert [(await body(wire)).split()[0] for _ in range(51)] == [f"/{number}" for number in range(51)]


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("half", [False, True])
async def test_client_that_leaves_ends_its_request_though_others_were_pipelined(
    later: int, half: bool
) -> None:
    app = App()
    async with connected(app) as wire:
        wire[1].write(get("/a"))
        await body(wire)
        wire[1].write(get("/wait?first") + get("/wait?second") * later)
        await app.waiting.wait()
        wire[1].write_eof() if half else wire[1].close()
        async with asyncio.timeout(10):
            while not app.left:
                await asyncio.sleep(0.001)
    assert app.left == ["first"], "the others were not begun"
