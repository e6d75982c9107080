"""One HTTP/1.1 connection of the load generator: asyncio streams for the bytes, httptools for the
protocol.

The load generator shares the CPU with the server it measures, so its cost matters. CPU seconds of
the client per 10,000 server-sent events, 64 concurrent streams of 256 events, on a Neoverse-N1:

    the server sends                        this client    httpx 0.28
    as fast as it can (reads hold several)         0.41          0.65
    an event per stream every 20 ms                0.39           1.5

httpx costs more because h11 parses every chunk in Python and each chunk passes several layers of
generators.
"""

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from holdfast.errors import ConfigError, ServerError

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 15


@dataclass(frozen=True)
class Address:
    """Where a server is. path comes before the routes."""

    host: str
    port: int
    path: str = ""
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse http://host:port, with or without a path; a trailing /v1 is dropped."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if secure else 80), path, secure)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}{self.path}"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return self.url.split("/")[2]


class BadStatus(ServerError):
    """The server answered with an error status. The message is the server's own, in one line."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server says {status}: {error_message(body)}")
        self.status = status


class BrokenStream(ServerError):
    """The connection ended, or sent something that is not HTTP, before the response was complete."""


def error_message(body: bytes) -> str:
    """The message of an error body, in OpenAI's format or in any other."""
    try:
        error = json.loads(body)
        message = error["error"]["message"] if isinstance(error.get("error"), dict) else error["message"]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = body[:200].decode(errors="replace")
    return " ".join(str(message).split())


def key_header(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key.

    Raises `ConfigError` for a key that is not a valid header value.
    """
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ConfigError("an API key is printable ASCII without spaces around it")
    return {"Authorization": f"Bearer {api_key}"}


class Connection:
    """A connection and the response that is being read from it.

    The methods on_* are callbacks of httptools.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._start_response()

    @classmethod
    async def open(cls, address: Address) -> "Connection":
        try:
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=address.secure or None
            )
        except OSError as error:
            raise BrokenStream(f"no connection to {address.url}: {error.strerror or error}") from error
        return cls(reader, writer)

    def _start_response(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._has_head = self._has_length = self._keep_alive = self._is_complete = False

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    @property
    def is_reusable(self) -> bool:
        """Whether the response was read to its end and the server keeps the connection open."""
        return self._is_complete and self._keep_alive

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._is_complete = True

    async def send(self, request: bytes) -> None:
        """Send a request and read the head of its response."""
        self._start_response()
        self._writer.write(request)
        num_bytes = 0
        while not self._has_head:
            num_bytes += await self._read()
            if num_bytes > _MAX_HEAD_BYTES and not self._has_head:
                raise BrokenStream("the head of a response has no end")

    async def read(self) -> bytes:
        """The next bytes of the body; none once it is complete."""
        while not self._body and not self._is_complete:
            await self._read()
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return data

    async def _read(self) -> int:
        data = await self._reader.read(_READ_BYTES)
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise BrokenStream(f"the server sent something that is not HTTP: {error}") from None
        elif not self._has_head:
            raise ConnectionResetError("the connection ended before a response")
        elif self._has_length:
            raise BrokenStream("the connection ended inside a response")
        else:  # a body without a length ends with the connection
            self._is_complete = True
        return len(data)

    def close(self) -> None:
        """Drop the connection, with everything that is still in flight."""
        self._writer.transport.abort()
