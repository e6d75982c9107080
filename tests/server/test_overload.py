"""Overload: too many connections and requests, clients that do not read. The engine has no model."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from support.fake_engine import READY, Prompt
from support.raw_http import wait_until
from support.serving import Server, serving
from support.streams import PATIENCE, Client, drop, open_request

FAKE = "fake_engine.py"
MAX_WAITING = 2
NUM_PLACES = READY.max_num_seqs + MAX_WAITING


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    with serving(
        tiny_llama, "--max-waiting", str(MAX_WAITING), "--send-timeout", "0.5", engine=FAKE
    ) as server:
        yield server


def stream(server: Server) -> Client:
    """A stream that continues until the engine completes it."""
    return Client(server, prompt=[Prompt.STREAM], stream=True).wait_first()


def end_streams(server: Server) -> None:
    os.kill(server.engine_pid, signal.SIGUSR1)


def is_healthy(server: Server) -> bool:
    answer = server.post("/v1/completions", {"prompt": [Prompt.ANSWER]})
    return answer.status_code == 200 and answer.json()["choices"][0]["text"] == "yes"


@pytest.mark.parametrize("hundreds", [12, pytest.param(100, marks=pytest.mark.long)])
def test_thousands_of_connections_opened_and_dropped(server: Server, hundreds: int) -> None:
    """Some send nothing, some half a request, some a whole one; all disconnect abruptly."""
    frontend = psutil.Process(server.pid)
    num_descriptors = frontend.num_fds()
    streaming = stream(server)
    address = httpx.URL(server.url)
    parts = (
        b"",
        b"POST /v1/comp",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n{",
        b"\0\xff\r\n\r\n",
    )
    for _ in range(hundreds):
        connections = [socket.create_connection((address.host, address.port), PATIENCE) for _ in range(100)]
        for at, connection in enumerate(connections):
            with contextlib.suppress(OSError):  # the server may have closed it
                connection.sendall(parts[at % len(parts)])
        for connection in connections:
            drop(connection)
    assert not streaming.is_over
    assert is_healthy(server)
    end_streams(server)
    assert streaming.wait().is_done and not streaming.error
    wait_until(lambda: frontend.num_fds() <= num_descriptors)


def test_client_that_does_not_read_is_disconnected(server: Server) -> None:
    """Its request is aborted; a client that reads goes on."""
    streaming = stream(server)
    aborted = server.metric("holdfast_request_success_total{.*abort.*}")
    body = {"prompt": [Prompt.FLOOD], "stream": True}
    with open_request(server, body, receive_bytes=4096) as connection:
        wait_until(lambda: server.metric("holdfast_request_success_total{.*abort.*}") == aborted + 1)
        wait_until(lambda: server.metric("holdfast_kv_pages_used") == 1)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 20):  # buffered bytes, then the end
                pass
    assert not streaming.is_over
    end_streams(server)
    assert streaming.wait().is_done and not streaming.error


def test_request_above_capacity_is_refused(server: Server) -> None:
    running = [stream(server) for _ in range(NUM_PLACES)]
    refused = server.post("/v1/completions", {"prompt": [Prompt.ANSWER]})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_requests"
    assert int(refused.headers["retry-after"]) > 0
    too_many = server.post("/v1/completions", {"prompt": [Prompt.ANSWER], "n": NUM_PLACES + 1})
    assert too_many.status_code == 400 and too_many.json()["error"]["param"] == "n"
    end_streams(server)
    assert all(one.wait().is_done and not one.error for one in running)
    assert is_healthy(server)


def test_idle_and_slow_clients_delay_nobody(server: Server) -> None:
    """Without a proxy, too: 500 connections that send nothing, 200 slow heads and 200 slow bodies."""
    address = httpx.URL(server.url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 90\r\n"
    with contextlib.ExitStack() as stack:
        for sent in [b""] * 500 + [head] * 200 + [head + b"\r\n{"] * 200:
            wire = stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE))
            wire.sendall(sent)
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            assert is_healthy(server)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 1.0, seconds


def test_more_connections_than_the_limit_are_refused(tiny_llama: Path) -> None:
    """Those that are open count, used or not. Once they are closed, requests are served again."""
    with serving(tiny_llama, "--max-connections", "20", engine=FAKE) as server:
        address = httpx.URL(server.url)
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE))
            wait_until(lambda: server.get("/health").status_code == 503)
        wait_until(lambda: is_healthy(server))
