"""Bodies that are too large, too slow, of the wrong type or too many are refused."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.body_limits import _MAX_FULL_BODIES, MIN_BYTES_PER_SECOND, BodyLimitMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from support.asgi import call_app, ok, scope_of, silence
from support.raw_http import HttpResponse

MOST = 1000


async def read(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body and respond with its length."""
    num, more = 0, True
    while more:
        message = await receive()
        num += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % num})


def post(
    *pieces: bytes, app: Any = read, method: str = "POST", json: bool = True, **headers: str
) -> HttpResponse:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    named += [("content-type", "application/json")] if json else []
    return call_app(
        ExceptionMiddleware(BodyLimitMiddleware(app, ServerConfig(max_body_bytes=MOST))),
        method,
        "/",
        named,
        pieces or (b"",),
    )


def test_body_of_maximum_size_is_accepted() -> None:
    assert post(b"x" * MOST, content_length=str(MOST)).body == b"1000"
    assert post(*[b"x"] * MOST, transfer_encoding="chunked").body == b"1000"


def test_larger_content_length_is_refused_unread() -> None:
    async def unreachable(*_: Any) -> None:
        raise AssertionError

    for length in (MOST + 1, 9999999999999999999):
        answer = post(app=unreachable, content_length=str(length))
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert "1000 bytes" in answer.error["message"]


def test_chunked_body_is_refused_when_it_exceeds_the_limit() -> None:
    assert post(b"x" * MOST, b"x", transfer_encoding="chunked").status == 413
    assert post(b"x" * 50 * MOST, transfer_encoding="chunked").status == 413


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        'application/json; charset="utf-8"',
        "application/vnd.api+json",
        "application/json;",
    ],
)
def test_json_content_types_are_accepted(kind: str) -> None:
    assert post(b"{}", json=False, content_length="2", content_type=kind).status == 200


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/json; charset=utf-16",
        "application/json\x00",
        "application/" + "a+" * 10_000,
        "ü",
    ],
)
def test_other_content_types_are_refused(kind: str) -> None:
    answer = post(b"{}", json=False, content_length="2", content_type=kind)
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert post(b"{}", json=False, transfer_encoding="chunked").status == 415


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, gzip", "deflate, gzip", "zstd", ""])
def test_compressed_bodies_are_refused(coding: str) -> None:
    assert (
        post(b"{}", content_length="2", content_encoding=coding).error["code"]
        == "unsupported_content_encoding"
    )


def test_request_without_body_is_accepted() -> None:
    assert post(json=False).body == b"0"
    assert post(json=False, content_length="0", content_type="text/plain").body == b"0"
    assert post(json=False, method="GET").status == 200
    assert post(b"x", json=False, method="GET", content_length="1", app=ok).status == 200


class Drip:
    """A client that sends chunks at intervals."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    async def receive(self) -> Message:
        if not self.pieces:
            await silence()
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": True}


async def drip(pieces: list[bytes], seconds: float) -> ApiError:
    """The error of a body that arrives in these pieces, within so many seconds."""
    app = BodyLimitMiddleware(read, ServerConfig(body_timeout=seconds))
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(app(scope_of("POST", "/"), Drip(pieces).receive, no_send), 10)
    return caught.value


@pytest.mark.anyio
async def test_slow_body_times_out() -> None:
    """Neither silence nor bytes below the least rate extend the time."""
    for pieces in ([], [b"x"], [b"x"] * 1000):
        error = await drip(pieces, 0.1)
        assert (error.status, error.code) == (408, "body_timeout")


@pytest.mark.anyio
async def test_body_at_the_least_rate_may_take_longer() -> None:
    """A client with a slow line may send a large body; a pause still ends it."""
    sent = b"x" * (MIN_BYTES_PER_SECOND // 50)  # twice the least rate
    pieces = [sent] * 60  # 0.6 s
    assert (await drip(pieces, 0.5)).code == "body_timeout"
    assert not pieces  # all arrived; then it paused


async def no_send(message: Message) -> None:
    raise AssertionError


def test_no_deadline_after_the_body() -> None:
    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"x"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.2)  # the test's timeout, not the body's

    async def receive() -> Message:
        return given.pop() if given else await silence()

    given = [{"type": "http.request", "body": b"x", "more_body": False}]
    app = BodyLimitMiddleware(wait, ServerConfig(body_timeout=0.05))
    asyncio.run(app(scope_of("POST", "/"), receive, no_send))


@pytest.mark.anyio
async def test_bodies_of_all_requests_are_bounded_together() -> None:
    """A large one too many gets 503, a small one is still accepted, and the others continue."""
    most, may_end = 100_000, asyncio.Event()
    reading = 0

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal reading
        while (await receive())["more_body"]:
            pass
        reading += 1
        await may_end.wait()

    app = BodyLimitMiddleware(hold, ServerConfig(max_body_bytes=most))

    async def send_body(size: int) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"x" * size, "more_body": False}

        await app(scope_of("POST", "/"), receive, no_send)

    held = [asyncio.create_task(send_body(most)) for _ in range(_MAX_FULL_BODIES)]
    await asyncio.sleep(0.01)
    with pytest.raises(ApiError) as caught:
        await send_body(most)
    assert (caught.value.status, caught.value.code) == (503, "too_many_bodies")
    held.append(asyncio.create_task(send_body(1000)))
    await asyncio.sleep(0.01)
    assert reading == _MAX_FULL_BODIES + 1
    may_end.set()
    await asyncio.gather(*held, send_body(most))
