"""All middleware together, in front of FastAPI, on real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from holdfast.server.app import add_middleware
from holdfast.server.config import ServerConfig
from holdfast.server.http.body import parse_body
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.tenants.directory import TenantDirectory
from support.raw_http import HttpResponse, ServerThread, served, wait_until

KEY = "the-key"
MOST = 1 << 20


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str


class RecordingApp:
    """Routes that count how their requests ended."""

    def __init__(self, config: ServerConfig) -> None:
        self.begun: list[str] = []
        self.cleaned: list[str] = []
        self.app = FastAPI(docs_url=None, redoc_url=None)
        self.app.get("/health")(self.health)
        self.app.post("/note")(self.note)
        self.app.post("/v1/messages")(self.note)
        self.app.post("/wait")(self.wait)
        self.app.get("/stream")(self.stream)
        self.app.get("/fail")(self.fail)
        self.app.get("/fail-late")(self.fail_late)
        self.app.get("/")(self.health)
        add_middleware(self.app, config, TenantDirectory(config))

    async def health(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def note(self, request: Request) -> Response:
        body = parse_body(await request.body(), Note)
        return JSONResponse({"length": len(body.text), "id": request.state.request_id})

    async def wait(self, request: Request) -> Response:
        parse_body(await request.body(), Note)

        async def work() -> None:
            self.begun.append("wait")
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.cleaned.append("wait")

        await run_until_disconnect(request, work())
        raise AssertionError

    async def stream(self) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            self.begun.append("stream")
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                self.cleaned.append("stream")

        return StreamingResponse(pieces())

    async def fail(self) -> Response:
        raise RuntimeError("/secret/path")

    async def fail_late(self) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError("/secret/path")

        return StreamingResponse(pieces())


CONFIG = ServerConfig(
    api_keys=(KEY,),
    allowed_origins=("https://app.example",),
    max_body_bytes=MOST,
    body_timeout=0.5,
)


@pytest.fixture(scope="module")
def recording() -> RecordingApp:
    return RecordingApp(CONFIG)


@pytest.fixture(scope="module")
def server(recording: RecordingApp) -> Iterator[ServerThread]:
    with served(recording.app, CONFIG) as server:
        yield server


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    given: dict[str, Any] = {"host": "x", "authorization": f"Bearer {KEY}"}
    if body is not None:
        given |= {"content-type": "application/json", "content-length": len(body)}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value != ""]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + (body or b"")


def note(size: int) -> bytes:
    return json.dumps({"text": "x" * size}).encode()


def has_common_headers(answer: HttpResponse) -> bool:
    """Check the headers that every response has."""
    return all(name in answer.headers for name in ("x-request-id", "x-content-type-options", "cache-control"))


def test_valid_request_is_answered(server: ServerThread) -> None:
    with server.connect() as connection:
        for size in (1, 100_000, MOST - 20):
            connection.send(request("POST", "/note", note(size), x_request_id="mine"))
            answer = connection.read()
            assert json.loads(answer.body) == {"length": size, "id": "mine"}
            assert has_common_headers(answer)


UNKNOWN, INVALID = "authentication_error", "invalid_request_error"


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (request("GET", "/nothing"), 404, "unknown_url"),
        (request("GET", "/../../etc/passwd"), 404, "unknown_url"),
        (request("GET", "/%2e%2e/%2e%2e/etc/passwd"), 404, "unknown_url"),
        (request("GET", "//evil.example/health"), 404, "unknown_url"),
        (request("GET", "/health/"), 404, "unknown_url"),
        (request("GET", "/%ff%fe%00%0d%0aX-A:b"), 404, "unknown_url"),
        (request("GET", "/%F0%9F%98%80?%zz=%00&&&==#"), 404, "unknown_url"),
        (request("GET", "/" + "a" * 20_000), 404, "unknown_url"),
        (request("OPTIONS", "*"), 404, "unknown_url"),
        (request("GET", "/note"), 405, "method_not_allowed"),
        (request("DELETE", "/note"), 405, "method_not_allowed"),
        (request("OPTIONS", "/note"), 405, "method_not_allowed"),
        (request("TRACE", "/health"), 405, "method_not_allowed"),
        (request("GET", "/health", authorization=""), 200, None),
        (request("GET", "/", authorization=""), 401, "missing_api_key"),
        (request("GET", "/nothing", authorization=""), 401, "missing_api_key"),
        (request("POST", "/note", note(1), authorization="Bearer \xff"), 401, "invalid_api_key"),
        (request("POST", "/note", note(1), authorization="Basic \xff"), 401, "invalid_api_key"),
        (request("POST", "/note", note(1), origin="https://evil.example"), 403, "origin_not_allowed"),
        (request("POST", "/note", note(1), content_type="text/plain"), 415, "unsupported_media_type"),
        (request("POST", "/note", note(1), content_encoding="gzip"), 415, "unsupported_content_encoding"),
        (request("POST", "/note"), 400, "invalid_json"),
        (request("POST", "/note", b""), 400, "invalid_json"),
        (request("POST", "/note", b"{"), 400, "invalid_json"),
        (request("POST", "/note", b"[" * 100_000), 400, "invalid_json"),
        (request("POST", "/note", b'{"text": 1}'), 400, "invalid_type"),
        (request("POST", "/note", note(MOST)), 413, "body_too_large"),
        (request("GET", "/fail"), 500, "internal_error"),
    ],
)  # fmt: skip
def test_every_error_has_the_same_shape(
    server: ServerThread, raw: bytes, status: int, code: str | None
) -> None:
    answer = server.request(raw)
    assert answer.status == status
    assert has_common_headers(answer)
    assert b"secret" not in answer.body
    if code is not None:
        assert answer.error["code"] == code


def test_error_reaches_a_client_that_is_still_sending(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(
            request("POST", "/note", content_type="application/json", content_length=str(50 << 20))
        )
        connection.send(b" " * (5 << 20))
        assert connection.read().status == 413


def test_slow_body_times_out(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(request("POST", "/note", note(10))[:-3])
        answer = connection.read()
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert connection.is_closed()


def test_expect_100_continue(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(
            request(
                "POST", "/note", content_type="application/json", content_length="12", expect="100-continue"
            )
        )
        assert connection.read().status == 100
        connection.send(b'{"text": ""}')
        assert connection.read().status == 200
    with server.connect() as connection:
        connection.send(
            request(
                "POST",
                "/note",
                content_type="application/json",
                content_length="99999999",
                expect="100-continue",
            )
        )
        assert connection.read().status == 413


def test_head_and_preflight(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(request("HEAD", "/health"))
        answer = connection.read(of_head=True)
        assert (answer.status, answer.headers["content-length"]) == (200, "15")
        connection.send(request("HEAD", "/stream"))
        assert connection.read(of_head=True).status == 200
        connection.send(request("HEAD", "/nothing"))
        assert connection.read(of_head=True).status == 404
        connection.send(
            request(
                "OPTIONS",
                "/note",
                origin="https://app.example",
                access_control_request_method="POST",
                authorization="",
            )
        )
        answer = connection.read()
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
        connection.send(
            request("POST", "/note", note(1), origin="https://app.example", authorization="Bearer no")
        )
        answer = connection.read()
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, "https://app.example")


def test_exception_after_the_first_byte_closes_the_connection(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(request("GET", "/fail-late"))
        with pytest.raises(EOFError, match="ended"):
            connection.read()
    assert server.request(request("GET", "/health")).status == 200


def test_disconnect_cancels_the_route(recording: RecordingApp, server: ServerThread) -> None:
    for size in (10, 500_000):
        recording.begun.clear()
        recording.cleaned.clear()
        with server.connect() as connection:
            connection.send(request("POST", "/wait", note(size)))
            wait_until(lambda: recording.begun == ["wait"])
        wait_until(lambda: recording.cleaned == ["wait"])
    recording.begun.clear()
    recording.cleaned.clear()
    with server.connect() as connection:
        connection.send(request("GET", "/stream"))
        connection.read_some(100_000)
    wait_until(lambda: recording.cleaned == ["stream"])


def test_other_clients_are_served_during_an_attack(server: ServerThread) -> None:
    """Slow headers, slow bodies, clients that do not read, refused bodies: none delays another
    client.
    """
    crowd: list[socket.socket] = []
    for number in range(200):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.sendall(
            (
                b"POST /note HTTP/1.1\r\nHos",
                request("POST", "/note", note(1000))[:-500],
                request("GET", "/stream"),
                request("POST", "/note", b"[" * 50_000),
            )[number % 4]
        )
        crowd.append(one)
    answers = [server.request(request("POST", "/note", note(10))).status for _ in range(20)]
    for one in crowd:
        one.close()
    assert answers == [200] * 20
    wait_until(lambda: server.num_connections == 0)
