"""Calls an ASGI application without a socket."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message

from support.raw_http import HttpResponse


def scope_of(method: str, path: str, headers: Iterable[tuple[str, str | bytes]] = ()) -> dict[str, Any]:
    encoded = [(n.lower().encode(), v if isinstance(v, bytes) else v.encode("latin-1")) for n, v in headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("ascii", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": encoded,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {"request_id": "test"},
    }


def call_app(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/",
    headers: Iterable[tuple[str, str | bytes]] = (("Host", "127.0.0.1:8000"),),
    body: Sequence[bytes] = (b"",),
) -> HttpResponse:
    """The response to one request.

    The body arrives in these chunks; the client does not disconnect.
    """
    sent = Sent()
    chunks = [{"type": "http.request", "body": one, "more_body": True} for one in body]
    chunks[-1]["more_body"] = False

    async def receive() -> Message:
        return chunks.pop(0) if chunks else await silence()

    async def run() -> None:
        await app(scope_of(method, path, headers), receive, sent)

    asyncio.run(run())
    start = sent[0]
    assert start["type"] == "http.response.start"
    response_headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in start["headers"]]
    assert not sent[-1].get("more_body", False)
    return HttpResponse(start["status"], response_headers, b"".join(one["body"] for one in sent[1:]))


async def silence() -> Message:
    """What a client sends that stays connected and sends nothing more."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class Sent(list[Message]):
    """The messages that were sent."""

    async def __call__(self, message: Message) -> None:
        self.append(message)


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """An application that responds "yes"."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"yes"})
