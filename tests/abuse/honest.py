"""The honest client: one small request after the other, each on a new connection, each timed."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from abuse.wire import LOST, Target

PROMPT = "the quick brown fox"
FORM = "(yes|no|maybe)"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}}}


@dataclass(frozen=True)
class Probe:
    """One kind of honest request. body(number) differs with the number where a cache would answer."""

    path: str
    body: Callable[[int], Any] | None = None
    is_right: Callable[[Any], bool] = lambda answer: True


def _completion(number: int) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 6, "seed": 7, "ignore_eos": True}


PROBES = {
    "completion": Probe("/v1/completions", _completion, lambda one: one["usage"]["completion_tokens"] == 6),
    "form": Probe(
        "/v1/completions",
        lambda number: {"prompt": PROMPT, "max_tokens": 8, "seed": 7, "guided_regex": FORM},
        lambda one: one["choices"][0]["text"] in ("yes", "no", "maybe"),
    ),
    "new form": Probe(
        "/v1/completions",
        lambda number: {"prompt": PROMPT, "max_tokens": 4, "seed": 7, "guided_regex": f"[ab{number}]{{2}}"},
    ),
    "version": Probe("/version"),
    "tokenize": Probe("/tokenize", lambda number: {"prompt": PROMPT}, lambda one: one["count"] > 0),
    "chat": Probe(
        "/v1/chat/completions",
        lambda number: {"messages": [{"role": "user", "content": "dog"}], "max_tokens": 4, "seed": 7},
    ),
    "long prompt": Probe(
        "/v1/completions",
        lambda number: {"prompt": f"{number} " + "the lazy dog " * 100, "max_tokens": 2, "ignore_eos": True},
    ),
}


@dataclass
class Timings:
    """Seconds and statuses of the honest client's requests; wrong answers count as 599."""

    seconds: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return median(self.seconds)

    @property
    def num_refused(self) -> int:
        return sum(status != 200 for status in self.statuses)


class Honest:
    """Sends probes. A probe that takes longer than `patience` counts as lost after that time."""

    def __init__(self, target: Target, patience: float) -> None:
        self.target = target
        self.patience = patience
        self._number = 0

    def send(self, path: str, body: Any = None) -> tuple[int, Any]:
        """One request: its status, and its JSON. A proxy's own errors have none."""
        status, content = self._send(path, body)
        is_json = content[:1] in (b"{", b"[")
        return status, json.loads(content) if is_json else None

    def text(self, path: str) -> str:
        """The text at a path."""
        status, content = self._send(path)
        assert status == 200, content
        return content.decode()

    def _send(self, path: str, body: Any = None) -> tuple[int, bytes]:
        host, port = self.target.address
        connection = http.client.HTTPConnection(host, port, timeout=self.patience)
        headers = {"Content-Type": "application/json"}
        if self.target.key is not None:
            headers["Authorization"] = f"Bearer {self.target.key}"
        try:
            content = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, content, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return LOST, b""
        finally:
            connection.close()

    def probe(self, name: str) -> tuple[float, int]:
        """One probe: its seconds, and its status."""
        probe = PROBES[name]
        self._number += 1
        body = None if probe.body is None else probe.body(self._number)
        began = time.perf_counter()
        status, answer = self.send(probe.path, body)
        seconds = time.perf_counter() - began
        return seconds, status if status != 200 or probe.is_right(answer) else 599

    def probes(self, name: str, num: int, seconds: float) -> Timings:
        """Up to `num` probes; none begins after `seconds`."""
        timings = Timings()
        until = time.monotonic() + seconds
        while len(timings.seconds) < num and (not timings.seconds or time.monotonic() < until):
            taken, status = self.probe(name)
            timings.seconds.append(taken)
            timings.statuses.append(status)
        return timings
