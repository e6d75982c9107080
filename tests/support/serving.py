"""A real server in its own processes: `with serving(model) as server: server.get("/health")`.

`engine` names a program that replaces the engine process, such as `faulty_engine.py`.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

HERE = Path(__file__).parent
_READY_SECONDS = 120.0


class Server:
    """A running server. Its output is in `lines`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._url: str | None = None
        self._updated = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def url(self) -> str:
        assert self._url is not None
        return self._url

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine_pid(self) -> int:
        """The current engine process."""
        for child in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.Error):
                if any(part.endswith(("host_main", "_engine.py")) for part in child.cmdline()[:3]):
                    return int(child.pid)
        raise AssertionError("no engine process")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = _READY_SECONDS, times: int = 1) -> re.Match[str]:
        """The first line that holds the pattern (or the times-th), now or later."""
        until = time.monotonic() + seconds
        with self._updated:
            while True:
                found = [match for line in self.lines if (match := re.search(pattern, line))]
                if len(found) >= times:
                    return found[times - 1]
                left = until - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._is_reading()):
                    raise AssertionError(f"{pattern!r} did not appear; the server wrote:\n{self.text}")
                self._updated.wait(min(left, 0.2))

    def wait_listening(self) -> None:
        self._url = self.wait_for(r"Listening on (http://\S+?);")[1]

    def wait_ready(self) -> None:
        self.wait_listening()
        self.wait_for("Ready after")

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Signal it and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def close(self) -> None:
        """Read the rest of its output, after it has ended."""
        for reader, stream in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            reader.join(5)
            if stream is not None and not reader.is_alive():
                stream.close()

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, **settings)

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **settings)

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        return _sum_of_series(self.get("/metrics").text, name)

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Wait until nothing runs or waits and no page is held."""
        names = ("num_requests_running", "num_requests_waiting", "kv_pages_used")
        until = time.monotonic() + seconds
        while True:
            metrics = self.get("/metrics").text
            if not any(_sum_of_series(metrics, f"holdfast_{name}") for name in names):
                return
            assert time.monotonic() < until, "the server does not become idle"
            time.sleep(0.05)

    def _is_reading(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._updated:
                self.lines.append(line.rstrip("\n"))
                self._updated.notify_all()


def _sum_of_series(metrics: str, name: str) -> float:
    lines = metrics.splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}(\{{|\s)", line)]
    assert values, f"there is no metric {name}"
    return sum(values)


@contextlib.contextmanager
def serving(
    model: Path | str | None,
    *arguments: str,
    engine: str | None = None,
    engine_settings: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Server]:
    """`holdfast serve` on a free port. engine names a program in this folder."""
    if engine is None:
        command = [sys.executable, "-m", "holdfast", "serve"]
    else:
        command = [sys.executable, str(HERE / "serve_with.py"), str(HERE / engine)]
    env = {**os.environ, **(environment or {}), "HOLDFAST_TEST_ENGINE": json.dumps(engine_settings or {})}
    process = subprocess.Popen(
        [*command, *([] if model is None else [str(model)]), "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    server = Server(process)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.stop(seconds=30)
        if process.poll() is None:
            process.kill()
            process.wait()
        server.close()
