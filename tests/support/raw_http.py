"""A client that sends arbitrary bytes."""

import json
import socket
import threading
from typing import Any

PATIENCE = 20.0  # seconds after which a test has failed


class HttpResponse:
    """One response."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = dict(headers)
        self.all_headers = headers
        self.body = body

    @property
    def error(self) -> dict[str, Any]:
        """The nested error object, which must be complete."""
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "Traceback" not in error["message"]
        return error


class Connection:
    """One connection, from this address of the machine."""

    def __init__(self, port: int, address: str = "", **options: int) -> None:
        self.socket = socket.socket()
        self.socket.bind((address, 0))
        for name, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        self._pending = b""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, *, of_head: bool = False) -> HttpResponse:
        """The next response; without a body for a HEAD request."""
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines if line]
        headers = [(name.lower(), value) for name, value in pairs]
        status, by_name = int(first.split(" ")[1]), dict(headers)
        if of_head or status in (204, 304) or status < 200:
            body = b""
        elif by_name.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = self._exactly(int(by_name["content-length"]))
        return HttpResponse(status, headers, body)

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the connection ended after {self._pending[:200]!r}")
        self._pending += data

    def _until(self, end: bytes) -> bytes:
        while end not in self._pending:
            self._more()
        taken, self._pending = self._pending.split(end, 1)
        return taken

    def _exactly(self, num: int) -> bytes:
        while len(self._pending) < num:
            self._more()
        taken, self._pending = self._pending[:num], self._pending[num:]
        return taken

    def _chunks(self) -> bytes:
        body = b""
        while num := int(self._until(b"\r\n"), 16):
            body += self._exactly(num)
            self._until(b"\r\n")
        self._until(b"\r\n")
        return body


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Poll until the condition is true; fail after so many seconds."""
    waiter = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        waiter.wait(0.005)
    raise AssertionError("the condition was not met in time")
