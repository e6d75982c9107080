"""`bench serve`: a load on a server: latencies, tok/s, and one answer to each deterministic prompt.

Clients send the next request when the last is answered. Ordinary requests have their own prompts.
Deterministic requests come from a few prompts with fixed settings: all answers to one of them must be
the text that was given alone, before the load. Times are the client's.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any

import httpx

from holdfast.errors import ConfigError, EngineStopped

_WORDS = "sea ship cold timber wool letter shore winter storm fish snow road hill"
_START_SECONDS = 300.0  # a first start certifies, and may download the model
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_RETRY_SECONDS = 0.1  # errors return quickly
_TEMPERATURE = 0.8
_PERCENTS = (50, 90, 99)
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up before a child needs it


@dataclass(frozen=True)
class ServeLoad:
    """What clients do. Prompts have words, answers tokens, from half to one and a half of the given number.

    deterministic: so many of the clients send deterministic requests only.
    """

    clients: int = 8
    seconds: float = 30.0
    prompt_words: int = 64
    output_tokens: int = 64
    deterministic: int = 2
    prompts: int = 4  # of deterministic requests; 0: each has its own
    seed: int = 0

    def draw(self, rng: random.Random, model: str, number: int | None) -> dict[str, Any]:
        """Return the body of a request. ignore_eos gives the answer exactly max_tokens tokens."""
        return {
            "model": model,
            "prompt": " ".join(rng.choices(_WORDS.split(), k=_about(rng, self.prompt_words))),
            "max_tokens": _about(rng, self.output_tokens),
            "temperature": _TEMPERATURE * (number is None or number % 2),
            "seed": rng.getrandbits(31),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if number is None else {"deterministic": True}),
        }


@dataclass
class Answer:
    """A streamed answer as its client saw it. prompt: the number of its deterministic prompt."""

    prompt: int | None
    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[float] = field(default_factory=list)  # of text
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    mode: str = "none"
    error: str | None = None  # the kind of error
    detail: str = ""  # its message

    def update(self, event: bytes) -> None:
        chunk = json.loads(event)
        if chunk.get("error"):
            self.error, self.detail = "error in the stream", str(chunk["error"].get("message"))
        for choice in chunk.get("choices", ()):
            if choice["text"]:
                self.text += choice["text"]
                self.arrivals.append(time.perf_counter())
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.num_tokens = (chunk.get("usage") or {}).get("completion_tokens", self.num_tokens)
        self.mode = (chunk.get("holdfast") or {}).get("mode", self.mode)


@dataclass(frozen=True)
class ServeRun:
    """The answers of one load that began and ended at these times, and those given alone before it."""

    alone: Sequence[Answer]
    answers: Sequence[Answer]
    started: float
    ended: float

    @property
    def speed(self) -> float:
        """Output tokens per second. Of an answer that went on after the end its share counts."""
        tokens = sum(
            one.num_tokens * sum(at <= self.ended for at in one.arrivals) / len(one.arrivals)
            for one in self.answers
            if one.arrivals
        )
        return tokens / (self.ended - self.started)

    def latencies(self, *, deterministic: bool) -> dict[str, list[float]]:
        own = [one for one in self.answers if (one.prompt is not None) is deterministic and one.arrivals]
        return {
            "first text": [one.arrivals[0] - one.sent for one in own],
            "between texts": [b - a for one in own for a, b in pairwise(one.arrivals) if b <= self.ended],
            "whole answer": [one.arrivals[-1] - one.sent for one in own if one.error is None],
        }

    @property
    def distinct(self) -> dict[int, int]:
        """Return for each deterministic prompt how many different answers it got."""
        found: dict[int, set[tuple[str, str | None]]] = {}
        for one in (*self.alone, *self.answers):
            if one.prompt is not None and one.prompt >= 0 and one.error is None:
                found.setdefault(one.prompt, set()).add((one.text, one.finish_reason))
        return {number: len(texts) for number, texts in found.items()}

    @property
    def modes(self) -> Counter[str]:
        """Count how deterministic answers were made: certified, verified, none."""
        return Counter(one.mode for one in self.answers if one.prompt is not None and one.error is None)

    @property
    def problems(self) -> list[str]:
        failed = [one for one in (*self.alone, *self.answers) if one.error is not None]
        details = {one.error: one.detail for one in failed}
        errors = Counter(one.error for one in failed)
        found = [f"{count} x {error}: {details[error]}" for error, count in errors.most_common()]
        found += [f"prompt {one} has {count} answers" for one, count in self.distinct.items() if count > 1]
        return found if self.answers else [*found, "no request was answered in time"]


def percentiles(values: Collection[float]) -> dict[str, float]:
    """Return p50, p90 and p99, interpolated; nothing for fewer than two values."""
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100, method="inclusive")
    return {f"p{percent}": cuts[percent - 1] for percent in _PERCENTS}


async def run_load(client: httpx.AsyncClient, load: ServeLoad) -> ServeRun:
    """Run the load on a server."""
    try:
        model = str((await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"the server at {client.base_url} cannot be measured: {error}") from None
    rng = random.Random(f"pool {load.seed}")
    pool = [load.draw(rng, model, number) for number in range(load.prompts)]
    alone = [await _send(client, body, number) for number, body in enumerate(pool) if load.deterministic]
    answers: list[Answer] = []
    started = time.perf_counter()
    ended = started + load.seconds

    async def run_client(number: int, deterministic: bool) -> None:
        rng = random.Random(f"client {load.seed} {number}")
        while time.perf_counter() < ended:
            if deterministic:
                place = rng.randrange(len(pool)) if pool else -1
                answer = await _send(client, pool[place] if pool else load.draw(rng, model, place), place)
            else:
                answer = await _send(client, load.draw(rng, model, None), None)
            answers.append(answer)
            if answer.error is not None:
                await asyncio.sleep(_RETRY_SECONDS)

    async with asyncio.TaskGroup() as group:
        for number in range(load.clients):
            group.create_task(run_client(number, number < load.deterministic))
    return ServeRun(alone, answers, started, ended)


async def _send(client: httpx.AsyncClient, body: Mapping[str, Any], prompt: int | None) -> Answer:
    answer, rest = Answer(prompt), b""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                answer.error = f"HTTP {response.status_code}"
                answer.detail = (await response.aread()).decode()[:300]
            async for data in response.aiter_bytes():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: {"):
                        answer.update(event[6:])
        if answer.finish_reason is None and answer.error is None:
            answer.error = "the stream ended without a finish reason"
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        answer.error, answer.detail = "broken stream", f"{type(error).__name__} {error}"
    return answer


@asynccontextmanager
async def connect(
    url: str | None, arguments: Sequence[str], api_key: str | None = None, timeout: float = 600.0
) -> AsyncIterator[httpx.AsyncClient]:
    """Connect to the server at this URL, or to a `holdfast serve` with these arguments while the block runs.

    The key is passed to it in the environment: arguments are public.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=None)
    port = _free_port()
    base = (url or f"http://127.0.0.1:{port}").removesuffix("/").removesuffix("/v1")
    try:
        opened = httpx.AsyncClient(
            base_url=base, headers=headers, timeout=timeout, limits=limits, trust_env=False
        )
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url} is no address of a server: {error}") from None
    async with opened as client:
        if url is not None:
            yield client
            return
        command = [sys.executable, "-m", "holdfast", "serve", *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        environment = {**os.environ, **({} if api_key is None else {"HOLDFAST_API_KEY": api_key})}
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )

            def last_words() -> str:
                log.seek(0)
                return " ".join(log.read()[-2000:].decode(errors="replace").split())

            try:
                await _wait_until_healthy(client, child, last_words)
                yield client
                if child.poll() is not None:
                    raise EngineStopped(f"the server ended with {child.returncode}: {last_words()}")
            finally:
                _stop(child)


async def _wait_until_healthy(
    client: httpx.AsyncClient, child: subprocess.Popen[bytes], last_words: Callable[[], str]
) -> None:
    until = time.perf_counter() + _START_SECONDS
    while True:
        if child.poll() is not None or time.perf_counter() > until:
            state = "is not up" if child.poll() is None else f"ended with {child.returncode}"
            raise EngineStopped(f"the server {state}: {last_words()}")
        with suppress(httpx.HTTPError):
            if (await client.get("/health")).status_code == 200:
                return
        await asyncio.sleep(_POLL_SECONDS)


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent is killed. Linux only."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _about(rng: random.Random, number: int) -> int:
    return rng.randint(-(-number // 2), number + number // 2)
