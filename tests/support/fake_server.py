"""A fake OpenAI-compatible server with scripted answers, in its own thread on a free port.

It records the requests it received and the clients that disconnected. Tests switch its faults on
and off.
"""

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ReceivedRequest:
    """One request as it arrived."""

    path: str
    body: dict[str, Any]


def repeatable_deltas(body: dict[str, Any]) -> list[str]:
    """The same answer to the same request, with max_tokens deltas."""
    about = json.dumps([body.get("prompt"), body.get("messages"), body.get("seed")])
    digits = hashlib.sha256(about.encode()).hexdigest()
    return [f" {digits[number % 64]}{number}" for number in range(body.get("max_tokens") or 4)]


@dataclass
class FakeServer:
    """Use as `with FakeServer() as server: ... server.url`. Settings may be changed while it runs."""

    deltas: Callable[[dict[str, Any]], list[str]] = repeatable_deltas
    api_key: str | None = None
    status: int = 200  # of completions
    max_messages: int = 1000  # of a chat; more exceed the context
    error: dict[str, Any] | None = None  # sent in the stream after the first delta
    break_after: int | None = None  # deltas; then the connection breaks
    hold: bool = False  # after the first delta, wait until the client disconnects
    holdfast: bool = True  # whether it sends Holdfast's extra fields
    received: list[ReceivedRequest] = field(default_factory=list)
    disconnected: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __enter__(self) -> "FakeServer":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def count(self, path: str) -> int:
        return Counter(one.path for one in self.received)[path]

    def completions(self) -> list[ReceivedRequest]:
        return [one for one in self.received if one.path.endswith("/completions")]

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False if the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split(" ")[1]
        request = ReceivedRequest(path, json.loads(data) if data else {})
        self.received.append(request)
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            return self._send(writer, 401, _error("that is not the key"))
        if path in ("/v1/completions", "/v1/chat/completions"):
            if self.status != 200:
                return self._send(writer, self.status, _error("we are\nbusy"))
            if len(request.body.get("messages", ())) > self.max_messages:
                return self._send(writer, 400, _error("too long", "context_length_exceeded"))
            return await self._stream(request, reader, writer)
        if path == "/v1/models":
            return self._send(writer, 200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        return self._send(writer, 404, _error("no such route"))

    def _send(self, writer: asyncio.StreamWriter, status: int, content: Any) -> bool:
        data = json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def _stream(
        self, request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Stream events. A disconnect is noticed where the answer waits, and at its end."""
        gone = asyncio.create_task(reader.read(1))  # returns only when the client disconnects
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        deltas = self.deltas(request.body)
        try:
            for number, delta in enumerate(deltas):
                if self.break_after == number:
                    return False
                _chunk(writer, _event(self._choice(request, delta, None)))
                await writer.drain()
                if self.error is not None:
                    _chunk(writer, _event({"error": self.error}) + b"data: [DONE]\n\n")
                    writer.write(b"0\r\n\r\n")
                    return True
                await asyncio.wait((gone,), timeout=None if self.hold else 0)
                if gone.done():
                    return False
            last = self._choice(request, "", "length")
            usage = {"completion_tokens": len(deltas), "prompt_tokens": 3}
            _chunk(writer, _event(last) + _event({"choices": [], "usage": usage} | self._about(request)))
            _chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return True
        finally:
            if gone.done():
                self.disconnected.release()
            gone.cancel()
            await asyncio.wait((gone,))

    def _choice(self, request: ReceivedRequest, text: str, finish_reason: str | None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if "chat" in request.path else {"text": text}
        return {"choices": [{"index": 0, **content, "finish_reason": finish_reason}]}

    def _about(self, request: ReceivedRequest) -> dict[str, Any]:
        if not self.holdfast:
            return {}
        mode = "certified" if request.body.get("deterministic") else "none"
        stats = {"candidates": 2, "accepted": 1, "rolled_back": 1}
        return {"holdfast": {"mode": mode, "seed": request.body.get("seed", 5), "stats": stats}}


def _error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
