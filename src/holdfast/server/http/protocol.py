"""HTTP/1.1 as bytes: what uvicorn's protocol leaves open to a client that means harm, or means nothing at all.

uvicorn parses and answers; this bounds what a connection may cost. Headers come in time and within bounds. A connection has
one request at a time: what comes before its answer is complete is not read, and the connection ends with that answer. Who
does not take an answer is cut off. Connections are counted; where there are too many, one without a request makes
room, the oldest first, or the newcomer is turned away.

    connected -> headers -> body -> answer -> idle -> headers -> ...     from anywhere: hung up, nothing more is heard
    |- header_timeout -|                      |- keep_alive_timeout       send_timeout: while an answer is not taken

What the headers may say is in `request_head`; the time a body may take is the business of `body`, which knows who reads it.
"""

import asyncio
import itertools
from asyncio import TimerHandle
from typing import Any, ClassVar

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.http.request_head import (
    HEADERS_TOO_LARGE,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    bad_request,
    fault_of,
    framing_of,
    written,
)

_LINGER_SECONDS = 2.0  # how long a client may go on sending after it was hung up on

_NOT_HTTP = bad_request("it is not HTTP/1.1")
_TOO_SLOW = ApiError(408, "The request's headers took too long.", code="header_timeout")
_TOO_LARGE = ApiError(413, "The request's body is too large.", code="body_too_large")
_TOO_MANY = ApiError(
    503, "The server has too many connections.", code="too_many_connections", headers={"Retry-After": "5"}
)


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn makes it, from the class that `make_protocol` gives it."""

    settings: ClassVar[ServerConfig]
    unoccupied: ClassVar[dict["LimitedHttpProtocol", None]]  # connections without a request, the oldest first

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._ending: TimerHandle | None = None  # the headers are awaited, or the connection is being closed
        self._stalling: TimerHandle | None = None  # there is more to send than the client takes
        self._num_head_bytes = 0  # of headers that are not complete
        self._num_body_bytes = 0  # as they came, with what frames them
        self._is_in_body = False
        self._is_deaf = False
        self._framing_of_upgrade = b""  # how the body of a request that asks for an upgrade ends
        self._refusal: ApiError | None = None  # why the parser was stopped

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.settings.max_connections and not self._make_room():
            self._is_deaf = True
            self.transport = transport
            transport.write(written(_TOO_MANY, self.server_state.default_headers))
            transport.close()
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` tells of the first byte that is not taken
        self.unoccupied[self] = None
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self.unoccupied.pop(self, None)
        _stop(self._ending, self._stalling, self.timeout_keep_alive_task)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_in_body:
            self._num_body_bytes += len(data)
            if self._num_body_bytes > 2 * self.settings.max_body_bytes + (
                64 << 10
            ):  # framing: tiny chunks, trailers
                self._refuse(_TOO_LARGE)
                return
        elif self._is_answering:
            self._end_with_this_answer()
            return
        else:
            self._unset_keepalive_if_required()
            self._await_headers()
        self._feed(data)
        if self._ending is not None and not self._is_deaf:  # the headers are not complete yet
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEADER_BYTES:
                self._refuse(HEADERS_TOO_LARGE)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalling = self.loop.call_later(self.settings.send_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._stalling)

    # From the parser

    def on_message_begin(self) -> None:
        if self._is_answering:
            self._end_with_this_answer()
            raise _Stop
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:  # a trailer must not become a header behind the back of whoever looked at them
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refusal = HEADERS_TOO_LARGE
            raise _Stop

    def on_headers_complete(self) -> None:
        self._refusal = fault_of(self.url, self.headers, self.parser.get_http_version())
        if self._refusal is not None:
            raise _Stop
        _stop(self._ending)
        self._ending = None
        self._num_head_bytes = self._num_body_bytes = 0
        super().on_headers_complete()
        self._is_in_body = True
        self.unoccupied.pop(self, None)
        if self.parser.should_upgrade():
            self._framing_of_upgrade = b"".join(
                name + b": " + value for name, value in framing_of(self.headers)
            )

    def on_body(self, body: bytes) -> None:
        if self._is_in_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._framing_of_upgrade:
            self._is_in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_in_body:  # the answer did not wait for the whole body; nobody will look at the rest
            self._hang_up()
        else:
            self.unoccupied[self] = None

    # Time

    def _await_headers(self) -> None:
        if self._ending is None:
            self._ending = self.loop.call_later(self.settings.header_timeout, self._stop_awaiting_headers)

    def _stop_awaiting_headers(self) -> None:
        if self._num_head_bytes:
            self._refuse(_TOO_SLOW)
        else:  # it never said a word
            self.transport.abort()

    # Ends

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NOT_HTTP)

    def _refuse(self, error: ApiError) -> None:
        """Say what is wrong, if that can still be said, and hang up. A route that runs is told that its client left."""
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(written(error, self.server_state.default_headers))
        self._hang_up()

    def _hang_up(self) -> None:
        """What was written still goes out; what comes in is dropped for a while, or a reset could overtake the answer."""
        self._is_deaf = True
        self.unoccupied.pop(self, None)
        self._unset_keepalive_if_required()
        _stop(self._ending)
        self._ending = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _end_with_this_answer(self) -> None:
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _make_room(self) -> bool:
        """Close the oldest connection that has no request and has taken its answer."""
        for one in itertools.islice(self.unoccupied, 16):
            if not one.transport.get_write_buffer_size():
                self.unoccupied.pop(one)
                self.connections.discard(one)
                one.transport.abort()
                return True
        return False

    # Bytes

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._is_deaf:
                self._refuse(self._refusal or _NOT_HTTP)

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """We stay with HTTP/1.1. The parser has left the body to the new protocol, so another one reads it."""
        framing, self._framing_of_upgrade = self._framing_of_upgrade, b""
        if framing:
            self.cycle.keep_alive = False
            self.parser = httptools.HttpRequestParser(_BodyOnly(self))
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        if rest:
            self._feed(rest)


def make_protocol(config: ServerConfig) -> type[LimitedHttpProtocol]:
    """The class for `uvicorn.Config(http=...)`. One for each server: its connections share a count."""

    class BoundProtocol(LimitedHttpProtocol):
        settings = config
        unoccupied: ClassVar[dict[LimitedHttpProtocol, None]] = {}

    return BoundProtocol


class _Stop(Exception):
    """Stops the parser; what to do about it has been noted."""


class _BodyOnly:
    """What a parser that reads nothing but a body reports to."""

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def _stop(*timers: TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
