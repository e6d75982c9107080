"""Work before admission over HTTP: refused early, and given up with its client."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

import httpx

from support.serving import Server
from support.streams import PATIENCE, drop

SLOW_REGEX = "(a|b)*a(a|b){14}c|" + "|".join(f"(x{one}|y)*z{{1,{one + 40}}}" for one in range(60))


def send(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and do not wait for the response."""
    url, raw = httpx.URL(server.url), json.dumps(body).encode()
    connection = socket.create_connection((url.host, url.port), PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
    with contextlib.suppress(OSError):
        connection.sendall(head.encode() + f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return connection


def test_grammars_of_clients_that_left_are_not_compiled(tiny_server: Server) -> None:
    """Twenty different slow grammars would take many seconds one after the other."""
    known = {"prompt": "the", "max_tokens": 2, "guided_choice": ["yes", "no"]}
    assert tiny_server.post("/v1/completions", known).status_code == 200
    left = [
        send(
            tiny_server,
            "/v1/completions",
            {"prompt": "the", "max_tokens": 2, "guided_regex": f"{one}{SLOW_REGEX}"},
        )
        for one in range(20)
    ]
    time.sleep(0.1)
    assert tiny_server.post("/v1/completions", known).status_code == 200  # never waits for an unknown one
    for one in left:
        drop(one)
    tiny_server.wait_idle()
    fresh = {"prompt": "the", "max_tokens": 2, "guided_choice": ["new", "other"]}
    assert tiny_server.post("/v1/completions", fresh).status_code == 200


def test_long_prompt_is_refused_and_the_event_loop_goes_on(tiny_server: Server) -> None:
    is_over, pauses = threading.Event(), [0.0]

    def watch() -> None:
        with httpx.Client(base_url=tiny_server.url, timeout=PATIENCE) as client:
            while not is_over.is_set():
                began = time.monotonic()
                assert client.get("/version").status_code == 200
                pauses.append(time.monotonic() - began)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for text in ("1234567890" * 50_000, "the dog " * 60_000):
            refused = tiny_server.post("/v1/completions", {"prompt": text, "max_tokens": 1})
            assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
            assert "tokens" in refused.json()["error"]["message"]
    finally:
        is_over.set()
        watching.join()
    assert max(pauses) < 1.0, pauses
