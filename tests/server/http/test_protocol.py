"""Hostile bytes on real sockets: the server responds or closes in time, and other clients are
served.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.http.disconnect import wait_for_disconnect
from holdfast.server.http.request_head import MAX_HEADER_BYTES, MAX_HEADERS
from support.raw_http import PATIENCE, Connection, ServerThread, served, wait_until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = 600.0


class ToyApp:
    """An application with several behaviours that counts how its requests ended."""

    def __init__(self) -> None:
        self.num_running = 0
        self.num_disconnected = 0
        self.num_answered = 0
        self.may_respond = threading.Event()
        self.num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_running += 1
        try:
            await getattr(self, scope["path"].strip("/") or "echo")(scope, receive, send)
            self.num_answered += 1
        finally:
            self.num_running -= 1

    async def echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.num_disconnected += 1
                return
            body += message["body"]
            more = message["more_body"]
        body = body + b"|" + b",".join(sorted(name for name, _ in scope["headers"]))
        await self._answer(send, body)

    async def unread(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(send, b"did not look")

    async def wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        while not self.may_respond.is_set() and not leaving.done():
            await asyncio.wait([leaving], timeout=0.005)
        if leaving.done():
            self.num_disconnected += 1
            return
        leaving.cancel()
        await self._answer(send, b"waited")

    async def pour(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client disconnects."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            self.num_sent += 1
            await asyncio.sleep(0)
        self.num_disconnected += 1

    async def heap(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send more than any buffer holds, in one message."""
        await self._answer(send, b"x" * (64 << 20))

    async def handful(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send less than a transport's default write buffer."""
        await self._answer(send, b"x" * (48 << 10))

    async def _answer(self, send: Send, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def toy() -> ToyApp:
    return ToyApp()


def config(**changed: Any) -> ServerConfig:
    patient = {
        **dict.fromkeys(("header_timeout", "body_timeout", "keep_alive_timeout", "send_timeout"), LONG),
        "max_body_bytes": 1 << 16,
    }
    return ServerConfig(**{**patient, **changed})


# For what waits for a timeout of ours, whose code is the same in both loops.
MOSTLY_UVLOOP = pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])


@pytest.fixture(params=["uvloop", "asyncio"])
def server(toy: ToyApp, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with served(toy, config(), request.param) as server:
        yield server


def test_plain_request_keeps_the_connection_alive(server: ServerThread) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            reply = connection.read()
            assert (reply.status, reply.body) == (200, b"hi|content-length,host")
            assert "connection" not in reply.headers


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
TRICKS = {
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "length in hex": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "length of 5000 digits": POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "empty length": POST + b"Content-Length:\r\n\r\n",
    "length beyond 64 bits": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\nabc",
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "odd space before chunked": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "folded": POST + b"X-A: a\r\n b\r\n\r\n",
    "folded first": b"POST / HTTP/1.1\r\n Host: x\r\n\r\n",
    "NUL in a value": POST + b"X-A: a\x00b\r\n\r\n",
    "NUL in a name": POST + b"X\x00A: a\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: x\n\n",
    "bare LF inside": POST + b"X-A: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare CR": POST + b"X-A: a\rX-B: b\r\n\r\n",
    "no name": POST + b": a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": POST + b"Host: y\r\n\r\n",
    "no path": b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n",
    "tunnel": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the path": b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no such version": b"GET / HTTP/1.9\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "noise": bytes(range(256)) * 4,
    "unknown method": b"PICKLE / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a dash as method": b"- / HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "negative chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc",
    "chunk size beyond 64 bits": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
    "chunk longer than it says": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "chunks ended by LF": POST + b"Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
    "a length as trailer": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
}


@pytest.mark.parametrize("name", TRICKS)
def test_ambiguous_framing_is_refused(tricked: ServerThread, name: str) -> None:
    with tricked.connect() as connection:
        connection.send(TRICKS[name])
        reply = connection.read()
        assert (reply.status, reply.error["code"]) == (400, "bad_request")
        assert reply.headers["connection"] == "close"
        assert connection.is_closed()
    assert tricked.request(GET).status == 200


@pytest.fixture(scope="module")
def tricked() -> Iterator[ServerThread]:
    with served(ToyApp(), config()) as server:
        yield server


@pytest.mark.parametrize(
    "raw",
    [b"GET /\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"],
    ids=["0.9", "explicit 0.9", "2.0"],
)
def test_other_http_versions_are_refused(tricked: ServerThread, raw: bytes) -> None:
    reply = tricked.request(raw)
    assert (reply.status, reply.error["code"]) == (505, "http_version_not_supported")


def test_headers_are_limited_in_number_and_size(tricked: ServerThread) -> None:
    most = MAX_HEADERS - 1  # one is Host
    assert tricked.request(POST + b"A: b\r\n" * most + b"\r\n").status == 200
    assert tricked.request(POST + b"A: b\r\n" * (most + 1) + b"\r\n").status == 431
    fits = MAX_HEADER_BYTES - len("/" + "Hostx" + "A") - 8
    assert tricked.request(POST + b"A: " + b"b" * fits + b"\r\n\r\n").status == 200
    for raw in (
        POST + b"A: " + b"b" * (fits + 1) + b"\r\n\r\n",
        POST + b"A: " + b"b" * (16 << 20),
        POST + b"b" * (16 << 20),
        b"GET /" + b"a" * (16 << 20),
        b"G" * (1 << 20),
        POST + b"a: b\r\n" * 1_000_000,
    ):
        with tricked.connect() as connection:
            try:
                connection.send(raw)
            except (BrokenPipeError, ConnectionResetError):
                continue  # it got the error, and its further bytes a reset
            reply = connection.read()
            assert reply.status in (400, 431)
            assert connection.is_closed()


def test_request_may_arrive_byte_by_byte(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n":
            connection.send(bytes([byte]))
        assert connection.read().body.startswith(b"hi|")


def test_trailers_do_not_become_headers(tricked: ServerThread) -> None:
    raw = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
    assert tricked.request(raw).body == b"a|host,transfer-encoding"


@pytest.mark.parametrize(
    "junk", [b"1;" + b"x" * (1 << 20), b"0\r\nX: " + b"y" * (1 << 20)], ids=["extension", "trailer"]
)
def test_chunk_framing_bytes_are_limited(tricked: ServerThread, junk: bytes) -> None:
    with tricked.connect() as connection:
        connection.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            connection.send(junk)
        except (BrokenPipeError, ConnectionResetError):
            return
        reply = connection.read()
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")


def test_pipelined_request_is_dropped(toy: ToyApp, server: ServerThread) -> None:
    """Data sent before the response is not read, and the connection closes after the response."""
    with server.connect() as connection:
        connection.send(GET * 1000)
        assert connection.read().status == 200
        assert connection.is_closed()
    with server.connect() as connection:
        connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_running == 1)
        for _ in range(10):
            connection.send(GET * 1000)
        toy.may_respond.set()
        reply = connection.read()
        assert (reply.body, reply.headers["connection"]) == (b"waited", "close")
        assert connection.is_closed()
    wait_until(lambda: toy.num_running == 0)
    assert toy.num_answered == 2


def test_disconnect_after_pipelining_is_noticed(toy: ToyApp, server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        wait_until(lambda: toy.num_running == 1)
    wait_until(lambda: toy.num_disconnected == 1)
    wait_until(lambda: server.num_connections == 0)


@pytest.mark.parametrize("rest", [b"abc", b""], ids=["one segment", "two segments"])
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 3\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"],
    ids=["length", "chunked"],
)
def test_upgrade_is_ignored_and_body_is_read(tricked: ServerThread, rest: bytes, framing: bytes) -> None:
    """Some clients offer HTTP/2 with every request."""
    body = b"abc" if b"Length" in framing else b"3\r\nabc\r\n0\r\n\r\n"
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    with tricked.connect() as connection:
        connection.send(POST + offer + framing + (body if rest else b""))
        connection.send(b"" if rest else body)
        assert connection.read().body.startswith(b"abc|")
        assert connection.is_closed()
    with tricked.connect() as connection:
        for _ in range(2):
            connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
            assert connection.read().status == 200


@MOSTLY_UVLOOP
@pytest.mark.parametrize(
    "raw",
    [b"", b"GET / HTTP/1.1\r\nHos", b"\r\n\r\n", POST],
    ids=["silent", "cut off", "empty lines", "no end"],
)
def test_header_timeout_closes_the_connection(toy: ToyApp, loop: str, raw: bytes) -> None:
    with served(toy, config(header_timeout=0.1), loop) as server:
        with server.connect() as connection:
            connection.send(raw)
            if raw:
                reply = connection.read()
                assert (reply.status, reply.error["code"]) == (408, "header_timeout")
            assert connection.is_closed()
        wait_until(lambda: server.num_connections == 0)
    assert toy.num_running == toy.num_answered == 0


def test_slow_bytes_do_not_extend_the_header_timeout(toy: ToyApp) -> None:
    with served(toy, config(header_timeout=0.2)) as server, server.connect() as connection:
        connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        connection.socket.settimeout(0.01)
        sent = 0
        while True:
            connection.send(b"A: b\r\n")
            sent += 1
            assert sent < 100, "it would have waited for ever"
            try:
                connection._more()
                break
            except TimeoutError:
                continue
        connection.socket.settimeout(PATIENCE)
        assert connection.read().status == 408


def test_header_timeout_applies_to_later_requests(toy: ToyApp) -> None:
    with served(toy, config(header_timeout=0.2)) as server, server.connect() as connection:
        connection.send(GET)
        assert connection.read().status == 200
        connection.send(b"\r\n")  # ends uvicorn's own wait for the next request
        assert connection.read().status == 408
        assert connection.is_closed()


def test_idle_connection_is_closed_after_keep_alive_timeout(toy: ToyApp) -> None:
    with served(toy, config(keep_alive_timeout=0.1)) as server, server.connect() as connection:
        connection.send(GET)
        assert connection.read().status == 200
        assert connection.is_closed()


def test_header_timeout_does_not_apply_to_a_running_request(toy: ToyApp) -> None:
    with (
        served(toy, config(header_timeout=0.1, keep_alive_timeout=0.1)) as server,
        server.connect() as connection,
    ):
        connection.send(POST + b"Content-Length: 2\r\n\r\na")
        wait_until(lambda: toy.num_running == 1)
        threading.Event().wait(0.3)  # longer than both timeouts
        connection.send(b"b")
        assert connection.read().body.startswith(b"ab|")


def test_empty_lines_after_a_request_do_not_end_it(toy: ToyApp) -> None:
    with served(toy, config(header_timeout=0.1)) as server, server.connect() as connection:
        connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_running == 1)
        connection.send(b"\r\n")
        threading.Event().wait(0.3)  # longer than the header timeout
        toy.may_respond.set()
        assert connection.read().body == b"waited"


def test_early_response_reaches_a_client_that_is_still_sending(toy: ToyApp, server: ServerThread) -> None:
    """A connection closed while the client is sending would be reset, and the response lost."""
    with server.connect() as connection:
        connection.send(
            b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 100_000
        )
        reply = connection.read()
        assert reply.body == b"did not look"
        connection.send(b"x" * 1_000_000)
        assert connection.is_closed()
    wait_until(lambda: server.num_connections == 0)


UNREAD = b"POST /unread HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("framing", "parts"),
    [
        (b"Content-Length: 8", [b"abcd", b"efgh"]),
        (b"Content-Length: 8", [b"abcdefgh" + GET[:9], GET[9:]]),
        (b"Transfer-Encoding: chunked", [b"4\r\nabcd\r\n", b"0\r\nX-A: b\r\n\r\n"]),
    ],
    ids=["length", "with the next request", "chunks"],
)
def test_rest_of_a_short_body_is_dropped_and_the_connection_stays(
    server: ServerThread, framing: bytes, parts: list[bytes]
) -> None:
    """Clients send headers and body separately, and expect a connection to stay that is not said to close."""
    with server.connect() as connection:
        for _ in range(2):
            connection.send(UNREAD + framing + b"\r\n\r\n")
            reply = connection.read()
            assert reply.body == b"did not look" and "connection" not in reply.headers
            for part in parts:
                threading.Event().wait(0.02)
                connection.send(part)
            if GET[9:] not in parts[-1]:
                connection.send(GET)
            assert connection.read().body == b"|host"


@pytest.mark.parametrize("rest", [b"zz\r\n", b"4\r\nabcd\r\n", b""], ids=["not a chunk", "no end", "nothing"])
def test_rest_of_a_body_that_does_not_end_closes_the_connection(
    toy: ToyApp, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.http.protocol._LINGER_SECONDS", 0.1)
    with served(toy, config()) as server, server.connect() as connection:
        connection.send(UNREAD + b"Transfer-Encoding: chunked\r\n\r\n")
        assert connection.read().status == 200
        connection.send(rest)
        assert connection.is_closed()  # without a second response
        wait_until(lambda: server.num_connections == 0)


def test_headers_after_a_dropped_body_must_arrive_in_time(toy: ToyApp) -> None:
    with served(toy, config(header_timeout=0.2)) as server, server.connect() as connection:
        connection.send(UNREAD + b"Content-Length: 2\r\n\r\n")
        assert connection.read().status == 200
        connection.send(b"hiGET / HTTP/1.1\r\n")
        assert connection.read().status == 408
        assert connection.is_closed()


def test_body_that_waits_for_a_permission_is_not_awaited(server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(UNREAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert connection.read().status == 200
        assert connection.is_closed()


def send_for_ever(connection: Connection) -> None:
    while True:
        connection.send(b"x" * 100_000)


def test_client_that_keeps_sending_after_close_is_disconnected(
    toy: ToyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.http.protocol._LINGER_SECONDS", 0.1)
    with served(toy, config()) as server, server.connect() as connection:
        connection.send(b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
        assert connection.read().status == 200
        with pytest.raises(ConnectionError):
            send_for_ever(connection)
        wait_until(lambda: server.num_connections == 0)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_client_that_does_not_read_a_stream_is_disconnected(toy: ToyApp, loop: str) -> None:
    with served(toy, config(send_timeout=0.2), loop) as server, server.connect(SO_RCVBUF=4096) as connection:
        connection.send(b"GET /pour HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_disconnected == 1)  # the route saw the disconnect
        wait_until(lambda: server.num_connections == 0 and toy.num_running == 0)
        assert toy.num_sent < 1000  # memory is bounded
        assert server.request(GET).status == 200


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_client_that_does_not_read_a_response_is_disconnected(toy: ToyApp, loop: str, close: bytes) -> None:
    """The route has ended, so only the connection can notice."""
    with served(toy, config(send_timeout=0.2), loop) as server, server.connect(SO_RCVBUF=4096) as connection:
        connection.send(b"GET /heap HTTP/1.1\r\nHost: x\r\n" + close + b"\r\n")
        wait_until(lambda: toy.num_answered == 1)
        wait_until(lambda: server.num_connections == 0)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_client_that_does_not_read_a_small_response_is_disconnected(toy: ToyApp, loop: str) -> None:
    with served(toy, config(send_timeout=0.2), loop) as server:
        server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with server.connect(SO_RCVBUF=4096) as connection:
            connection.send(b"GET /handful HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: toy.num_answered == 1)
            wait_until(lambda: server.num_connections == 0)


@MOSTLY_UVLOOP
def test_slow_reader_is_not_disconnected_while_it_reads(toy: ToyApp, loop: str) -> None:
    """For four times the send timeout, at a rate at which the write buffer never becomes empty."""
    with served(toy, config(send_timeout=0.3), loop) as server, server.connect(SO_RCVBUF=4096) as connection:
        connection.send(b"GET /heap HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_answered == 1)
        for _ in range(24):
            assert connection.socket.recv(16384)
            threading.Event().wait(0.05)
        assert server.num_connections == 1
        wait_until(lambda: server.num_connections == 0)  # it reads no more


def test_slow_reader_gets_the_whole_response(toy: ToyApp) -> None:
    with served(toy, config(send_timeout=0.5)) as server, server.connect(SO_RCVBUF=65536) as connection:
        connection.send(b"GET /heap HTTP/1.1\r\nHost: x\r\n\r\n")
        left = 64 << 20
        connection._until(b"\r\n\r\n")
        left -= len(connection._pending)
        while left:
            left -= len(connection.socket.recv(1 << 20))


def test_unsent_responses_are_limited_in_memory(toy: ToyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.http.connections.MAX_UNSENT_BYTES", 100 << 20)
    with served(toy, config()) as server, ExitStack() as stack:
        for number in range(3):  # 64 MB each
            connection = stack.enter_context(server.connect(SO_RCVBUF=4096))
            connection.send(b"GET /heap HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda number=number: toy.num_answered == number + 1)
        wait_until(lambda: server.num_connections == 1)
        assert server.request(GET).status == 200


def test_disconnect_is_noticed(toy: ToyApp, server: ServerThread) -> None:
    for _ in range(5):
        with server.connect() as connection:
            connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: toy.num_running == 1)
        wait_until(lambda: toy.num_running == 0)
    assert toy.num_disconnected == 5


def test_disconnect_during_the_body_is_noticed(toy: ToyApp, server: ServerThread) -> None:
    with server.connect() as connection:
        connection.send(POST + b"Content-Length: 10\r\n\r\nabc")
        wait_until(lambda: toy.num_running == 1)
    wait_until(lambda: toy.num_disconnected == 1 and toy.num_running == 0)


def test_bad_chunk_ends_the_waiting_route(
    toy: ToyApp, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.http.protocol._LINGER_SECONDS", LONG)
    with server.connect() as connection:
        connection.send(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        wait_until(lambda: toy.num_running == 1)
        connection.send(b"zz\r\n")
        assert connection.read().status == 400
        wait_until(lambda: toy.num_disconnected == 1 and toy.num_running == 0)


def test_connections_above_the_limit_are_refused(toy: ToyApp) -> None:
    with served(toy, config(max_connections=3)) as server:
        busy = [server.connect() for _ in range(3)]
        for connection in busy:
            connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_running == 3)
        for _ in range(5):
            with server.connect() as connection:
                reply = connection.read()
                assert (reply.status, reply.error["code"]) == (503, "too_many_connections")
                assert reply.headers["retry-after"] == "5"
                assert connection.is_closed()
        toy.may_respond.set()
        for connection in busy:
            assert connection.read().body == b"waited"
        assert server.request(GET).status == 200
        for connection in busy:
            connection.socket.close()


def test_idle_connections_are_evicted_for_new_ones(toy: ToyApp) -> None:
    with served(toy, config(max_connections=3)) as server:
        connections = [server.connect() for _ in range(3)]
        for connection in (connections[1], connections[0], connections[2]):
            connection.send(GET)
            assert connection.read().status == 200
        connections[1].send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: toy.num_running == 1)
        assert server.request(GET).status == 200
        assert connections[0].is_closed()  # idle for longest; the busy one stays
        toy.may_respond.set()
        assert connections[1].read().body == b"waited"
        connections[2].send(GET)
        assert connections[2].read().status == 200
        for connection in connections:
            connection.socket.close()


BODY_NEVER_COMES = POST + b"Content-Length: 10\r\n\r\n"


def test_requests_whose_body_never_comes_give_way(toy: ToyApp) -> None:
    """Ten times as many as there are connections; no other request is refused."""
    with served(toy, config(max_connections=20)) as server, ExitStack() as stack:
        slow = []
        for number in range(200):
            connection = stack.enter_context(server.connect())
            connection.send(BODY_NEVER_COMES)
            slow.append(connection)
            if number % 10 == 0:
                assert server.request(GET).status == 200
        wait_until(lambda: toy.num_disconnected >= 180)
        assert server.num_connections <= 20
        reply = slow[0].read()
        assert (reply.status, reply.error["code"]) == (503, "too_many_connections")
        assert slow[0].is_closed()
        slow[-1].send(b"x" * 10)
        assert slow[-1].read().status == 200


def test_body_that_progresses_outlives_those_that_do_not(toy: ToyApp) -> None:
    with served(toy, config(max_connections=20)) as server, ExitStack() as stack:
        honest = stack.enter_context(server.connect())
        honest.send(POST + b"Content-Length: 1000\r\n\r\n")
        wait_until(lambda: toy.num_running == 1)
        for number in range(100):
            connection = stack.enter_context(server.connect())
            connection.send(BODY_NEVER_COMES + b"x" * (number % 2))
            honest.send(b"x" * 10)
            wait_until(lambda: toy.num_running <= 20)
        assert honest.read().status == 200


def test_client_with_few_connections_is_not_displaced(toy: ToyApp) -> None:
    with served(toy, config(max_connections=20)) as server, ExitStack() as stack:
        try:
            few = stack.enter_context(server.connect(address="127.0.0.2"))
        except OSError:
            pytest.skip("this system has one loopback address")
        few.send(BODY_NEVER_COMES)
        wait_until(lambda: toy.num_running == 1)
        for _ in range(100):
            stack.enter_context(server.connect()).send(BODY_NEVER_COMES)
        few.send(b"x" * 10)
        assert few.read().status == 200
        few.send(GET)  # nor while it is idle
        assert few.read().status == 200


def test_request_of_a_client_above_its_share_gives_way_to_another_client(toy: ToyApp) -> None:
    with served(toy, config(max_connections=4)) as server, ExitStack() as stack:
        many = [stack.enter_context(server.connect()) for _ in range(4)]
        for number, connection in enumerate(many, 1):
            connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda number=number: toy.num_running == number)  # type: ignore[misc]
        try:
            other = stack.enter_context(server.connect(address="127.0.0.2"))
        except OSError:
            pytest.skip("this system has one loopback address")
        other.send(GET)
        assert other.read().status == 200
        reply = many[-1].read()  # the newest
        assert (reply.status, reply.error["code"]) == (429, "too_many_connections")
        assert reply.headers["retry-after"] == "5"
        wait_until(lambda: toy.num_disconnected == 1)
        toy.may_respond.set()
        for connection in many[:-1]:
            assert connection.read().body == b"waited"


def test_error_below_the_application_has_the_shape_of_the_routes_api(server: ServerThread) -> None:
    bad = b" HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"
    with server.connect() as connection:
        connection.send(b"POST /v1/messages?beta=true" + bad)
        content = json.loads(connection.read().body)
        assert (content["type"], content["error"]["type"]) == ("error", "invalid_request_error")
    with server.connect() as connection:
        connection.send(b"POST /v1/completions" + bad)
        assert set(connection.read().error) == {"message", "type", "param", "code"}


def test_thousands_of_connections_leave_no_state(toy: ToyApp) -> None:
    with served(toy, config(max_connections=200)) as server:
        batch: list[socket.socket] = []
        for number in range(10_000):
            one = socket.create_connection(("127.0.0.1", server.port))
            if number % 3 == 0:
                one.sendall((b"GET / HTTP/1.1\r\n", GET, b"\x00\xff")[number // 3 % 3])
            batch.append(one)
            if len(batch) == 500:
                assert server.request(GET).status == 200  # while all are open
                for one in batch:
                    one.close()
                batch.clear()
        assert server.request(GET).status == 200
        wait_until(lambda: server.num_connections == 0 and toy.num_running == 0)
        assert not len(server.protocol.table)


def test_closed_connection_leaves_no_state(toy: ToyApp, server: ServerThread) -> None:
    for raw in (b"", b"GET", GET, b"GET\x00", POST + b"Content-Length: 9\r\n\r\na"):
        with server.connect() as connection:
            connection.send(raw)
            if raw == GET:
                connection.read()
    wait_until(lambda: server.num_connections == 0 and not len(server.protocol.table))
