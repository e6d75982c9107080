"""The HTTP client of the load generator: send a request, stream one completion, take the times.

A connection is reused if its response was read to the end. A client that disconnects early closes
its connection; this is how a server notices.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from holdfast.bench.serve.http_connection import (
    Address,
    BadStatus,
    BrokenStream,
    Connection,
    error_message,
    key_header,
)

_REQUEST_SECONDS = 30.0  # for requests that do not generate


@dataclass(frozen=True)
class Disconnect:
    """When a client disconnects: after so many deltas with text; if that is 0, after so many
    seconds.
    """

    after_deltas: int
    after_seconds: float = 0.0


@dataclass
class StreamResult:
    """One streamed completion as its client saw it.

    Times are those of `time.perf_counter`. arrivals are the times of deltas with text. num_tokens
    is the server's count; where the server does not tell, it is the number of those deltas.
    """

    sent: float
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    holdfast: dict[str, Any] | None = None
    error: str | None = None  # the kind of error
    detail: str = ""  # its message
    disconnected: bool = False


class EventParser:
    """Server-sent events: feed bytes, get the data of every complete event.

    Comments and other fields are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events


class Client:
    """Any number of concurrent requests, each on its own connection. All of them carry the API key."""

    def __init__(self, address: Address, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.address = address
        self._timeout = timeout
        self._idle: list[Connection] = []
        headers = {"Host": address.authority, "User-Agent": "holdfast-bench", **key_header(api_key)}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)  # the event loop closes the connections before it ends

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def request(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of a response.

        Raises `BadStatus` for an error status and `BrokenStream` for no response.
        """
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                connection = await self._send(method, path, body)
                content = await self._read_all(connection)
        except TimeoutError:
            raise BrokenStream(f"no response from {path} within {_REQUEST_SECONDS:g} s") from None
        except OSError as error:
            raise BrokenStream(str(error)) from error
        if connection.status != 200:
            raise BadStatus(connection.status, content)
        return content

    async def stream(self, path: str, body: Any, disconnect: Disconnect | None = None) -> StreamResult:
        """Stream one completion to its end or to its disconnect.

        Errors are in the result, never raised.
        """
        result = StreamResult(time.perf_counter())
        before_text = disconnect is not None and disconnect.after_deltas == 0
        limit = disconnect.after_seconds if disconnect is not None and before_text else self._timeout
        try:
            async with asyncio.timeout(limit):
                await self._stream(path, body, result, disconnect)
        except TimeoutError:
            result.disconnected = before_text
            if not before_text:
                result.error, result.detail = "time-out", f"no end after {self._timeout:g} s"
        except BadStatus as error:
            result.error, result.detail = f"status {error.status}", str(error)
        except (BrokenStream, OSError) as error:
            result.error, result.detail = "broken stream", str(error)
        result.ended = time.perf_counter()
        return result

    async def _stream(
        self, path: str, body: Any, result: StreamResult, disconnect: Disconnect | None
    ) -> None:
        connection = await self._send("POST", path, body)
        if connection.status != 200:
            raise BadStatus(connection.status, await self._read_all(connection))
        try:
            complete = await _read_events(connection, result, disconnect)
        except BaseException:
            connection.close()
            raise
        if result.disconnected:
            connection.close()
            return
        self._release(connection)
        if not complete and result.error is None:
            raise BrokenStream("the stream ended without [DONE]")

    async def _read_all(self, connection: Connection) -> bytes:
        parts = []
        try:
            while data := await connection.read():
                parts.append(data)
        except BaseException:
            connection.close()
            raise
        self._release(connection)
        return b"".join(parts)

    async def _send(self, method: str, path: str, body: Any) -> Connection:
        """Send a request and read the head of its response.

        A reused connection may be closed by now: retry.
        """
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(data)}\r\n"
        )
        if body is not None:
            head += "Content-Type: application/json\r\n"
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await Connection.open(self.address)
            try:
                await connection.send(f"{head}\r\n".encode() + data)
                return connection
            except ConnectionError as error:
                connection.close()
                if not reused:
                    raise BrokenStream("the connection ended before a response") from error
            except BaseException:
                connection.close()
                raise

    def _release(self, connection: Connection) -> None:
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()


async def _read_events(connection: Connection, result: StreamResult, disconnect: Disconnect | None) -> bool:
    """Read events until the stream ends or the client disconnects, also if more of them came with the
    last one. True if [DONE] was among them."""
    events, complete = EventParser(), False
    while data := await connection.read():
        now = time.perf_counter()
        for event in events.feed(data):
            if event == b"[DONE]":
                complete = True
                continue
            add_event(result, event, now)
            if disconnect is not None and len(result.arrivals) >= max(1, disconnect.after_deltas):
                result.disconnected = True
                return False
    return complete


def add_event(result: StreamResult, event: bytes, now: float) -> None:
    """Add one event of a stream of text or chat completions."""
    try:
        chunk = json.loads(event)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta", {})
            text = (
                choice["text"] if "text" in choice else delta.get("reasoning_content") or delta.get("content")
            )
            if text:
                result.text += text
                result.arrivals.append(now)
            token_ids = choice.get("token_ids")
            result.num_tokens += len(token_ids) if token_ids is not None else bool(text)
            result.finish_reason = choice.get("finish_reason") or result.finish_reason
        if chunk.get("usage"):
            result.num_tokens = int(chunk["usage"]["completion_tokens"])
        result.holdfast = chunk.get("holdfast") or result.holdfast
        if chunk.get("error") is not None:
            result.error, result.detail = "error in the stream", error_message(event)
    except (ValueError, KeyError, TypeError, AttributeError):
        result.error, result.detail = "broken stream", f"an event that is no completion: {event[:80]!r}"
