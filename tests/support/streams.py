"""Clients of a server under test that stream, wait, stop reading or leave; each says what it was told."""

import contextlib
import json
import socket
import threading
from typing import Any

import httpx

from support.serving import Server

PATIENCE = 60.0  # seconds after which a test has failed


class Client:
    """One request in a thread of its own. `first` is set with its first event, or at its end."""

    def __init__(self, server: Server, path: str = "/v1/completions", **body: Any) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.is_done = False  # the stream ended as streams end
        self.body: dict[str, Any] = {}
        self.first = threading.Event()
        self._url = server.url + path
        self._asked = body
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> "Client":
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the request hangs"
        return self

    def wait_first(self) -> "Client":
        assert self.first.wait(PATIENCE), "nothing came"
        return self

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def error(self) -> dict[str, Any]:
        """The error it was told, as the whole answer or as its last event; empty if there was none."""
        last = self.events[-1] if self.events else self.body
        error: dict[str, Any] = last.get("error", {})
        assert not error or set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def text(self) -> str:
        """All that was said of the first choice."""
        said = self.events or [self.body]
        return "".join(choice["text"] for one in said for choice in one.get("choices", ()))

    def _run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._asked, timeout=PATIENCE) as answer:
                self.status, self.headers = answer.status_code, dict(answer.headers)
                if "event-stream" in answer.headers.get("content-type", ""):
                    for line in answer.iter_lines():
                        self._take(line)
                else:
                    self.body = json.loads(answer.read())
        except httpx.HTTPError as error:
            self.body = {"lost": repr(error)}
        finally:
            self.first.set()

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            self.events.append(json.loads(line.removeprefix("data: ")))
            self.first.set()


def open_request(
    server: Server, body: dict[str, Any], path: str = "/v1/completions", receive_bytes: int | None = None
) -> socket.socket:
    """A connection on which a request was sent, and nothing read yet."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(PATIENCE)
    try:
        connection.connect((host, int(port)))
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    except BaseException:
        connection.close()
        raise
    return connection


def drop(connection: socket.socket) -> None:
    """Close it without a farewell: the server sees a reset."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
