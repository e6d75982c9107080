"""Clients of a server under test that stream, wait, stop reading or disconnect."""

import contextlib
import json
import socket
import threading
from typing import Any

import httpx

from support.serving import Server

PATIENCE = 60.0  # seconds after which a test has failed


class Client:
    """One request in a thread. `first` is set at the first event, or at the end."""

    def __init__(
        self,
        server: Server,
        path: str = "/v1/completions",
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.is_done = False  # the stream ended with [DONE]
        self.body: dict[str, Any] = {}
        self.first = threading.Event()
        self._url = server.url + path
        self._body = body
        self._headers = headers
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> "Client":
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the request hangs"
        return self

    def wait_first(self) -> "Client":
        assert self.first.wait(PATIENCE), "no event arrived"
        return self

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def error(self) -> dict[str, Any]:
        """The error of the response or of its last event; empty if there was none."""
        last = self.events[-1] if self.events else self.body
        error: dict[str, Any] = last.get("error", {})
        assert not error or set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def text(self) -> str:
        """The text of all choices."""
        chunks = self.events or [self.body]
        return "".join(choice["text"] for one in chunks for choice in one.get("choices", ()))

    def _run(self) -> None:
        try:
            with httpx.stream(
                "POST", self._url, json=self._body or None, headers=self._headers, timeout=PATIENCE
            ) as response:
                self.status, self.headers = response.status_code, dict(response.headers)
                if "event-stream" in response.headers.get("content-type", ""):
                    for line in response.iter_lines():
                        self._add(line)
                else:
                    self.body = json.loads(response.read())
        except httpx.HTTPError as error:
            self.body = {"lost": repr(error)}
        finally:
            self.first.set()

    def _add(self, line: str) -> None:
        if line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            self.events.append(json.loads(line.removeprefix("data: ")))
            self.first.set()


def events_of(text: str) -> list[Any]:
    """The events of a whole stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def open_request(
    server: Server, body: dict[str, Any], path: str = "/v1/completions", receive_bytes: int | None = None
) -> socket.socket:
    """A connection on which a request was sent and nothing was read."""
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
    """Close with a TCP reset."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
