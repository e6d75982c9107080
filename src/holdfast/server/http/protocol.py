"""Limits on HTTP/1.1 connections that uvicorn does not have.

uvicorn parses requests and writes responses. It does not limit the time and size of headers,
pipelined requests, the time a client takes to read its response, or idle connections. This subclass
of uvicorn's protocol does:

- Headers must arrive within `header_timeout` and within `MAX_HEADERS` and `MAX_HEADER_BYTES`.
- A connection has one request at a time. Data that arrives before the response is complete is
  dropped, and the connection closes after that response.
- The rest of a body that a response did not wait for is read and dropped, if it arrives soon; then the
  connection can have another request.
- A client that takes no byte of its response for `send_timeout` is disconnected.
- Above `max_connections` a connection that waits for its client gives way (`connections`), or else the
  new one is refused.

    connected -> headers -> body -> response -> idle -> headers -> ...   from every state: closing, input is dropped
    |- header_timeout -|            |- send_timeout  |- keep_alive_timeout

`request_head` checks the headers' content. `middleware.body_limits` limits the time of a body,
because only the reader of the body knows when it waits for it.
"""

import asyncio
import contextlib
import fcntl
import struct
import termios
from asyncio import TimerHandle
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.http.connections import ConnectionTable, set_connection
from holdfast.server.http.request_head import (
    HEADERS_TOO_LARGE,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    bad_request,
    body_framing,
    encode_response,
    find_head_error,
)
from holdfast.server.tenants.addresses import Network, is_trusted, network_of, parse_address, parse_proxies
from holdfast.server.tenants.tenant import UNKNOWN_TENANT, address_tenant

_LINGER_SECONDS = 2.0  # how long input is still read and dropped after a response
_MAX_CHECK_SECONDS = 2.0  # between two looks at whether a client reads

_NOT_HTTP = bad_request("it is not HTTP/1.1")
_TOO_SLOW = ApiError(408, "The request's headers did not arrive in time.", code="header_timeout")
_TOO_LARGE = ApiError(413, "The request's body is too large.", code="body_too_large")
_TOO_MANY = ApiError(
    503,
    "The server has too many connections; retry later.",
    code="too_many_connections",
    headers={"Retry-After": "5"},
)
_GAVE_WAY = ApiError(
    503,
    "The server has too many connections, and this request was arriving too slowly; retry later.",
    code="too_many_connections",
    headers={"Retry-After": "5"},
)


_DISPLACED = ApiError(
    429,
    "The server has too many connections, and this client has more than its share of them; retry later.",
    code="too_many_connections",
    headers={"Retry-After": "5"},
)


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn creates it, from the class that `make_protocol` returns."""

    settings: ClassVar[ServerConfig]
    proxies: ClassVar[Sequence[Network]]
    table: ClassVar["ConnectionTable[LimitedHttpProtocol]"]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""  # of the current request; uvicorn sets it when a request begins
        self._close_timer: TimerHandle | None = (
            None  # until the headers are complete, and again while closing
        )
        self._send_timer: TimerHandle | None = None  # while the client does not read
        self._unread_timer: TimerHandle | None = None  # while the rest of a body is dropped
        self._num_unsent_bytes = 0  # at the last look, here and in the kernel
        self.sent_at = 0.0
        self._began = 0.0  # when the current request began to arrive, or the wait for it
        self._num_request_bytes = 0  # that have arrived since
        self._num_head_bytes = 0  # of incomplete headers
        self._num_body_bytes = 0  # on the wire, including chunked framing
        self._is_in_body = False
        self._drops_input = False
        self._upgrade_framing = b""  # framing headers of a request that asks for an upgrade
        self._head_error: ApiError | None = None  # why the parser was stopped

    @property
    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_unread_body(self) -> bool:
        """Whether the body is still arriving although the response is complete."""
        return self._is_in_body and not self._is_responding

    # For the table of connections

    def receive_rate(self, now: float) -> float:
        return self._num_request_bytes / max(now - self._began, 1e-3)

    @property
    def may_give_way(self) -> bool:
        return not self.flow.read_paused  # otherwise it is this server that does not read

    def give_way(self) -> None:
        """Close, for another connection. A client whose request was arriving is told so."""
        self.connections.discard(self)
        self.table.remove(self)
        has_request = self._num_request_bytes > 0 and not self._drops_input
        if not has_request or self.has_response or self.transport.get_write_buffer_size():
            self._end_route()
            self.transport.abort()
            return
        is_complete = self._is_responding and not self._is_in_body
        self._write_error(_DISPLACED if is_complete else _GAVE_WAY)
        self._end_route()
        self._drops_input = True
        self.transport.close()

    def assign(self, client: Hashable) -> None:
        self.table.assign(self, client)

    def _client_of(self, transport: asyncio.Transport) -> Hashable:
        """The tenant of the peer's address until a request says more.

        A connection of a trusted proxy belongs to no client before that: it counts for itself.
        """
        peer = get_remote_addr(transport)
        address = parse_address(peer[0]) if peer is not None else None
        if address is None:
            return UNKNOWN_TENANT.id
        return self if is_trusted(address, self.proxies) else address_tenant(network_of(address)).id

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        client = self._client_of(transport)
        self._began = self.loop.time()
        if self.table.is_full:
            slowest = self.table.find_room(client, self._began)
            if slowest is None:
                self._drops_input = True
                self.transport = transport
                self._write_error(_TOO_MANY)
                transport.close()
                return
            slowest.give_way()
        super().connection_made(transport)
        # High water mark 0: `pause_writing` is called for the first unsent byte.
        transport.set_write_buffer_limits(high=0)
        self.table.add(self, client)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        _cancel(self._close_timer, self._send_timer, self._unread_timer, self.timeout_keep_alive_task)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._drops_input:
            return
        if self._is_in_body:
            self._num_body_bytes += len(data)
            # Twice the limit and 64 KiB allow for the framing: tiny chunks, trailers.
            if self._num_body_bytes > 2 * self.settings.max_body_bytes + (64 << 10):
                self._refuse(_TOO_LARGE)
                return
        elif self._is_responding:
            self._close_after_response()
            return
        else:
            self._unset_keepalive_if_required()
            self._await_headers()
        self._num_request_bytes += len(data)
        self.table.set_receiving(self)
        self._feed(data)
        if self._close_timer is not None and not self._drops_input:  # the headers are not complete yet
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEADER_BYTES:
                self._refuse(HEADERS_TOO_LARGE)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._num_unsent_bytes = self._count_unsent()
        self._note_sent()
        self._watch_reading()
        largest = self.table.find_excess()
        if largest is not None:
            largest.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._send_timer)
        self.table.set_read(self)

    # From the parser

    def on_message_begin(self) -> None:
        if self._is_responding:
            self._close_after_response()
            raise _StopParsing
        if self._close_timer is None:  # it arrived together with the end of a body that was dropped
            self._unset_keepalive_if_required()
            self._await_headers()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:  # a trailer must not become a header after the headers were checked
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._head_error = HEADERS_TOO_LARGE
            raise _StopParsing

    def on_headers_complete(self) -> None:
        self._head_error = find_head_error(self.url, self.headers, self.parser.get_http_version())
        if self._head_error is not None:
            raise _StopParsing
        _cancel(self._close_timer)
        self._close_timer = None
        self._num_head_bytes = self._num_body_bytes = 0
        super().on_headers_complete()
        self._is_in_body = True
        set_connection(self.scope, self)
        if self.parser.should_upgrade():
            self._upgrade_framing = b"".join(
                name + b": " + value for name, value in body_framing(self.headers)
            )

    def on_body(self, body: bytes) -> None:
        if self._is_in_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrade_framing:
            return
        was_unread, self._is_in_body = self._has_unread_body, False
        if was_unread:
            _cancel(self._unread_timer)
            self._await_request()
        else:
            self.table.set_busy(self)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        self._await_request()
        if not self._is_in_body:
            return
        if self.expect_100_continue:  # whether the body follows is not known
            self._close_gracefully()
        else:
            self._unread_timer = self.loop.call_later(_LINGER_SECONDS, self._close_gracefully)

    # Timeouts

    def _await_request(self) -> None:
        self._began = self.loop.time()
        self._num_request_bytes = 0
        self.table.set_receiving(self)

    def _await_headers(self) -> None:
        if self._close_timer is None:
            self._began = self.loop.time()
            self._num_request_bytes = 0
            self._close_timer = self.loop.call_later(
                self.settings.header_timeout, self._stop_awaiting_headers
            )

    def _stop_awaiting_headers(self) -> None:
        if self._num_head_bytes:
            self._refuse(_TOO_SLOW)
        else:  # no byte arrived
            self.transport.abort()

    def _watch_reading(self) -> None:
        seconds = min(self.settings.send_timeout / 4, _MAX_CHECK_SECONDS)
        self._send_timer = self.loop.call_later(seconds, self._check_reading)

    def _check_reading(self) -> None:
        """Disconnect a client that has taken no byte for `send_timeout`."""
        num_unsent_bytes = self._count_unsent()
        if num_unsent_bytes != self._num_unsent_bytes:
            self._num_unsent_bytes = num_unsent_bytes
            self._note_sent()
        elif self.loop.time() - self.sent_at >= self.settings.send_timeout:
            self.transport.abort()
            return
        self._watch_reading()

    def _note_sent(self) -> None:
        self.sent_at = self.loop.time()
        self.table.set_unread(self, self.transport.get_write_buffer_size())

    def _count_unsent(self) -> int:
        """Bytes the client has not acknowledged. Nothing is written while they are counted, so the
        number only decreases.
        """
        return self.transport.get_write_buffer_size() + _count_in_kernel(self.transport)

    # Closing

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NOT_HTTP)

    def _refuse(self, error: ApiError) -> None:
        """Send an error response if none has started, then close.

        A running route sees a disconnect.
        """
        if self._has_unread_body:
            self._close_gracefully()
            return
        if self.has_response:
            self._end_route()
            self.transport.abort()
            return
        self._write_error(error)
        self._end_route()
        self._close_gracefully()

    def _write_error(self, error: ApiError) -> None:
        self.transport.write(encode_response(error, self.server_state.default_headers, self.url))

    @property
    def has_response(self) -> bool:
        return self._is_responding and self.cycle.response_started

    def _end_route(self) -> None:
        """A running route sees a disconnect."""
        if self._is_responding:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _close_gracefully(self) -> None:
        """Flush the output, then close.

        Input is read and dropped meanwhile: a TCP reset could discard the response.
        """
        self._drops_input = True
        self._await_request()
        self._unset_keepalive_if_required()
        _cancel(self._close_timer, self._unread_timer)
        self._close_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close_after_response(self) -> None:
        self._drops_input = True
        self.cycle.keep_alive = False

    # Parsing

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._drops_input:
                self._refuse(self._head_error or _NOT_HTTP)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Ignore the upgrade.

        The parser leaves the body to the new protocol, so a second parser reads it.
        """
        framing, self._upgrade_framing = self._upgrade_framing, b""
        if framing:
            self.cycle.keep_alive = False
            self.parser = httptools.HttpRequestParser(_BodyOnly(self))
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        if rest:
            self._feed(rest)


def make_protocol(config: ServerConfig) -> type[LimitedHttpProtocol]:
    """The class for `uvicorn.Config(http=...)`. Each server has its own class, whose connections
    are counted together.
    """

    class BoundProtocol(LimitedHttpProtocol):
        settings = config
        proxies = parse_proxies(config.trusted_proxies)
        table: ClassVar[ConnectionTable[LimitedHttpProtocol]] = ConnectionTable(config.max_connections)

    return BoundProtocol


class _StopParsing(Exception):
    """Stops the parser; `_head_error` has the reason."""


class _BodyOnly:
    """The callbacks of a parser that reads only a body."""

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def _count_in_kernel(transport: asyncio.Transport) -> int:
    """Bytes in the socket's send buffer. 0 where the system does not say: then progress is seen only
    when the kernel takes more.
    """
    with contextlib.suppress(OSError, ValueError):
        fileno = transport.get_extra_info("socket").fileno()
        return int(struct.unpack("i", fcntl.ioctl(fileno, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0


def _cancel(*timers: TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
