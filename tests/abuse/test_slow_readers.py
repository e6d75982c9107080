"""A client that reads slowly but steadily gets the whole answer."""

import json
import socket
import time

import pytest

from abuse.wire import Target, encode
from support.serving import Server

PATIENCE = 60.0


def read_slowly(target: Target, body: object, bytes_per_second: int) -> tuple[bytes, float]:
    """The response, and the seconds that reading it took."""
    content = encode(body)
    began = time.monotonic()
    received = b""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.settimeout(PATIENCE)
        connection.connect(target.address)
        connection.sendall(target.head("POST", "/v1/completions", len(content)) + content)
        first = 0.0
        while data := connection.recv(1 << 16):
            first = first or time.monotonic()
            received += data
            ahead = len(received) / bytes_per_second - (time.monotonic() - first)
            if ahead > 0:
                time.sleep(ahead)
    return received, time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize(("num_prompts", "rate"), [(8, 1_000_000), (8, 400_000)])
def test_slow_reader_gets_the_whole_answer(
    attacked: Server, hostile: list[Target], num_prompts: int, rate: int
) -> None:
    """An answer of megabytes takes several times --send-timeout (2 s) to read."""
    ids = [[5 + (at * 7 + one) % 250 for at in range(3000)] for one in range(num_prompts)]
    body = {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 20}
    response, seconds = read_slowly(hostile[0], body, rate)
    head, _, rest = response.partition(b"\r\n\r\n")
    print(f"{len(response) / 1e6:.1f} MB in {seconds:.0f} s")
    assert b" 200 " in head.partition(b"\r\n")[0]
    assert len(json.loads(rest)["choices"]) == num_prompts
