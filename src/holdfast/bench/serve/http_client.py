"""An HTTP client as small as a load generator needs: ask, stream one completion, note the times.

It shares the server's cores, so it is raw asyncio streams and json and nothing else. A connection is kept for the next
request if its answer was read to the end; a client that leaves early closes it, which is how a server sees that nobody
listens any more.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from holdfast.bench.serve.http_body import BodyError, Events
from holdfast.bench.serve.http_connection import (
    Address,
    BrokenStream,
    Connection,
    Refused,
    error_message,
    key_header,
)

_ASK_SECONDS = 30.0  # for plain questions, which no engine has to answer


@dataclass(frozen=True)
class Leaving:
    """When a client loses interest: after so many pieces of text; before the first, after so many seconds."""

    after_pieces: int
    after_seconds: float = 0.0


@dataclass
class Heard:
    """One completion as its client saw it. Times are `time.perf_counter`'s; arrivals are those of pieces of text."""

    sent: float
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0  # as the server counts them; where it does not say, one a piece
    holdfast: dict[str, Any] | None = None
    error: str | None = None  # its kind
    detail: str = ""  # what was said about it
    left: bool = False


class Client:
    """Any number of requests at once, each on a connection of its own. `api_key` goes with every one of them."""

    def __init__(self, address: Address, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.address = address
        self._timeout = timeout
        self._idle: list[Connection] = []
        headers = {"Host": address.authority, "User-Agent": "holdfast-bench", **key_header(api_key)}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)  # the loop ends the connections before it ends itself

    def close(self) -> None:
        """Drop the connections that wait for a next request."""
        while self._idle:
            self._idle.pop().close()

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """A plain question and its whole answer. Raises `Refused` for an error, `BrokenStream` for no answer."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                connection = await self._send(method, path, body)
                answer = await self._read_all(connection)
        except TimeoutError:
            raise BrokenStream(f"{path} gave no answer within {_ASK_SECONDS:g} s") from None
        except (OSError, EOFError, BodyError) as error:
            raise BrokenStream(str(error)) from error
        if connection.status != 200:
            raise Refused(connection.status, answer)
        return answer

    async def stream(self, path: str, body: Any, leaving: Leaving | None = None) -> Heard:
        """Stream one completion to its end, or until it is time to leave. What goes wrong is noted, never raised."""
        heard = Heard(time.perf_counter())
        impatient = leaving is not None and leaving.after_pieces == 0
        limit = leaving.after_seconds if leaving is not None and impatient else self._timeout
        try:
            async with asyncio.timeout(limit):
                await self._listen(path, body, heard, leaving)
        except TimeoutError:
            heard.left = impatient
            if not impatient:
                heard.error, heard.detail = "time-out", f"no end after {self._timeout:g} s"
        except Refused as error:
            heard.error, heard.detail = f"status {error.status}", str(error)
        except (BrokenStream, BodyError, OSError, EOFError) as error:
            heard.error, heard.detail = "broken stream", str(error)
        heard.ended = time.perf_counter()
        return heard

    async def _listen(self, path: str, body: Any, heard: Heard, leaving: Leaving | None) -> None:
        connection = await self._send("POST", path, body)
        if connection.status != 200:
            raise Refused(connection.status, await self._read_all(connection))
        try:
            complete = await self._hear(connection, heard, leaving)
        except BaseException:
            connection.close()
            raise
        if heard.left:
            connection.close()
            return
        self._keep(connection)
        if not complete and heard.error is None:
            raise BrokenStream("the stream ended without [DONE]")

    async def _hear(self, connection: Connection, heard: Heard, leaving: Leaving | None) -> bool:
        """Take the stream's events until it ends or it is time to leave; true if [DONE] was among them."""
        events, complete = Events(), False
        while data := await connection.read_piece():
            now = time.perf_counter()
            for event in events.feed(data):
                if event == b"[DONE]":
                    complete = True
                else:
                    note_event(heard, event, now)
            if leaving is not None and not complete and len(heard.arrivals) >= max(1, leaving.after_pieces):
                heard.left = True
                break
        return complete

    async def _read_all(self, connection: Connection) -> bytes:
        pieces = []
        try:
            while piece := await connection.read_piece():
                pieces.append(piece)
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return b"".join(pieces)

    async def _send(self, method: str, path: str, body: Any) -> Connection:
        """Ask, and read the answer's head. A kept connection that the server closed meanwhile is replaced."""
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._fixed}Content-Length: {len(data)}\r\n"
        if body is not None:
            head += "Content-Type: application/json\r\n"
        while True:
            kept = bool(self._idle)
            connection = self._idle.pop() if kept else await Connection.open(self.address)
            try:
                connection.writer.write(f"{head}\r\n".encode() + data)
                await connection.read_head()
                return connection
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                connection.close()
                if not kept:
                    raise BrokenStream("the connection ended before an answer") from error
            except BaseException:
                connection.close()
                raise

    def _keep(self, connection: Connection) -> None:
        if connection.keep and connection.body.done:
            self._idle.append(connection)
        else:
            connection.close()


def note_event(heard: Heard, event: bytes, now: float) -> None:
    """Take one event of a completion's stream, of text or of a chat."""
    try:
        chunk = json.loads(event)
        for choice in chunk.get("choices") or ():
            text = choice["text"] if "text" in choice else choice.get("delta", {}).get("content")
            if text:
                heard.text += text
                heard.arrivals.append(now)
            token_ids = choice.get("token_ids")
            heard.num_tokens += len(token_ids) if token_ids is not None else bool(text)
            heard.finish_reason = choice.get("finish_reason") or heard.finish_reason
        if chunk.get("usage"):
            heard.num_tokens = int(chunk["usage"]["completion_tokens"])
        heard.holdfast = chunk.get("holdfast") or heard.holdfast
        if chunk.get("error") is not None:
            heard.error, heard.detail = "error in the stream", error_message(event)
    except (ValueError, KeyError, TypeError, AttributeError):
        heard.error, heard.detail = "broken stream", f"an event that is no completion: {event[:80]!r}"
