"""A server for one test run, and the proxy between it and the tests.

The proxy asks for the receipt of every answer and keeps it with the request and the text. A client gets
the end of an answer after it is kept, so that nothing is missing when the test ends.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

Exchange = dict[str, Any]  # path, request, texts by choice, receipt

_STOP_SECONDS = 20.0
_RECORDED = ("/v1/chat/completions", "/v1/completions")
_DROPPED_HEADERS = ("host", "content-length", "connection", "accept-encoding")


class ServerProcess:
    """`holdfast serve` in a process of its own. Its output is kept in a file."""

    def __init__(self, options: Sequence[str]) -> None:
        self._log = Path(tempfile.mkdtemp(prefix="holdfast-")) / "server.log"
        command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--deterministic", *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.url = self._wait_for(r"Listening on (http://\S+?);")

    def wait_ready(self) -> None:
        """Wait until the model is loaded. Raise if the server ended."""
        self._wait_for("(Ready) after")

    def _wait_for(self, pattern: str) -> str:
        while True:
            status, output = self._process.poll(), self._log.read_text(errors="replace")
            found = re.search(pattern, output)
            if found:
                return found[1]
            if status is not None:
                raise RuntimeError(f"holdfast serve ended with status {status}:\n{output}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the server, whatever model they name. Calls `keep` with each answer that is recorded."""

    daemon_threads = True

    def __init__(self, target: str, keep: Callable[[Exchange], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.client = httpx.Client(base_url=target, timeout=None, limits=httpx.Limits())
        self.model = self.client.get("/v1/models").json()["data"][0]["id"]
        self.keep = keep
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: the end of the connection is the end of the answer."""

    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = _read_object(body) if self.path in _RECORDED else None
        if request is not None:
            body = json.dumps({**request, "model": self.server.model, "return_receipt": True}).encode()
        headers = {name: text for name, text in self.headers.items() if name.lower() not in _DROPPED_HEADERS}
        whole = last = b""
        with self.server.client.stream(self.command, self.path, content=body, headers=headers) as answer:
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("content-type", ""))
            self.end_headers()
            for piece in answer.iter_bytes():
                self.wfile.write(last)
                last = piece
                whole += piece
        if request is not None and answer.status_code == 200:
            self.server.keep({"path": self.path, "request": request, **_read_answer(whole)})
        self.wfile.write(last)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Write nothing among the tests' output."""


def _read_object(body: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(body)
    except ValueError:
        return None  # the server says what is wrong
    return content if isinstance(content, dict) else None


def _read_answer(answer: bytes) -> dict[str, Any]:
    """Return the texts and the receipt of a response or of a stream of its parts."""
    lines = [answer]
    if answer.startswith(b"data:"):
        lines = [line[5:] for line in answer.splitlines() if line.startswith(b"data: {")]
    texts: dict[int, str] = {}
    receipt = None
    for part in map(json.loads, lines):
        for choice in part.get("choices", ()):
            message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
            texts[choice["index"]] = texts.get(choice["index"], "") + (message.get("content") or "")
        receipt = (part.get("holdfast") or {}).get("receipt") or receipt
    return {"texts": [texts[index] for index in sorted(texts)], "receipt": receipt}
