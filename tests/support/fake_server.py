"""A server that looks like OpenAI's from outside and answers from a script; in a thread of its own, on a free port.

It says what it was asked, and whether its clients heard it out. What goes wrong with it is up to the test.
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

Pieces = list[str]
NUM_TOKENS = 300


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def steady_pieces(body: dict[str, Any]) -> Pieces:
    """The same answer to the same question, as long as was asked for."""
    about = json.dumps([body.get("prompt"), body.get("messages"), body.get("seed")])
    digits = hashlib.sha256(about.encode()).hexdigest()
    return [f" {digits[number % 64]}{number}" for number in range(body.get("max_tokens") or 4)]


@dataclass
class FakeServer:
    """`with FakeServer() as server: ... server.url`. Settings may be changed while it runs."""

    pieces: Callable[[dict[str, Any]], Pieces] = steady_pieces
    api_key: str | None = None
    status: int = 200  # of completions
    max_messages: int = 1000  # of a chat; more do not fit the context
    error: dict[str, Any] | None = None  # told in the stream, behind the first piece
    cut_after: int | None = None  # pieces; then the connection breaks
    hold: bool = False  # behind the first piece nothing comes until the client leaves
    holdfast: bool = True  # whether it is one of ours
    metrics: dict[str, float] = field(default_factory=dict)
    keep_alive: bool = True
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

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
        return Counter(one.path for one in self.asked)[path]

    def completions(self) -> list[Asked]:
        return [one for one in self.asked if one.path.endswith("/completions")]

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer) and self.keep_alive:
                    pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; false if the connection is done with."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = head[0].split(" ")
        asked = Asked(method, path, headers, json.loads(data) if data else {})
        self.asked.append(asked)
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            return self._send(writer, 401, _error("that is not the key"))
        if path in ("/v1/completions", "/v1/chat/completions"):
            if self.status != 200:
                return self._send(writer, self.status, _error("we are\nbusy"))
            if len(asked.body.get("messages", ())) > self.max_messages:
                return self._send(writer, 400, _error("too long", "context_length_exceeded"))
            return await self._stream(asked, reader, writer)
        return self._send(writer, *self._plain(path))

    def _plain(self, path: str) -> tuple[int, Any]:
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "fake", "object": "model"}]}
        if path == "/tokenize":
            return 200, {
                "tokens": list(range(10, 10 + NUM_TOKENS)),
                "count": NUM_TOKENS,
                "max_model_len": 2048,
            }
        if path == "/metrics":
            return 200, "".join(f"# HELP {name} x\n{name} {value}\n" for name, value in self.metrics.items())
        return 404, _error("no such route")

    def _send(self, writer: asyncio.StreamWriter, status: int, content: Any) -> bool:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def _stream(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Events in chunks. Someone who leaves is noticed where the answer waits, and at its end."""
        gone = asyncio.create_task(reader.read(1))  # nothing comes but the end
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        pieces = self.pieces(asked.body)
        try:
            for number, piece in enumerate(pieces):
                if self.cut_after == number:
                    return False
                _chunk(writer, _event(self._choice(asked, piece, None)))
                await writer.drain()
                if self.error is not None:
                    _chunk(writer, _event({"error": self.error}) + b"data: [DONE]\n\n")
                    writer.write(b"0\r\n\r\n")
                    return True
                await asyncio.wait((gone,), timeout=None if self.hold else 0)
                if gone.done():
                    return False
            last = self._choice(asked, "", "length")
            usage = {"completion_tokens": len(pieces), "prompt_tokens": 3}
            _chunk(writer, _event(last) + _event({"choices": [], "usage": usage} | self._about(asked)))
            _chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return True
        finally:
            if gone.done():
                self.left.release()
            gone.cancel()
            await asyncio.wait((gone,))

    def _choice(self, asked: Asked, text: str, finish_reason: str | None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if "chat" in asked.path else {"text": text}
        return {"choices": [{"index": 0, **content, "finish_reason": finish_reason}]}

    def _about(self, asked: Asked) -> dict[str, Any]:
        if not self.holdfast:
            return {}
        mode = "certified" if asked.body.get("deterministic") else "none"
        stats = {"candidates": 2, "accepted": 1, "rolled_back": 1}
        return {"holdfast": {"mode": mode, "seed": asked.body.get("seed", 5), "stats": stats}}


def _error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
