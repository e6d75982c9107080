"""docs/nginx.conf in front of a server: what passes, what does not, and who the client is."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.fake_engine import Prompt
from support.nginx import behind_nginx
from support.raw_http import Connection, wait_until
from support.serving import Server, serving
from support.streams import PATIENCE

BODY = {"prompt": [Prompt.ANSWER]}


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    arguments = ("--trusted-proxy", "127.0.0.1", "--log-format", "json")
    with serving(tiny_llama, *arguments, engine="fake_engine.py") as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with behind_nginx(server.url, tmp_path_factory.mktemp("nginx")) as url:
        yield url


@pytest.fixture(scope="module")
def client(proxy: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy, timeout=PATIENCE) as client:
        yield client


def test_the_client_is_who_connects_to_the_proxy(server: Server, proxy: str) -> None:
    """Whatever it says of itself."""
    port = httpx.URL(proxy).port
    wire = http.client.HTTPConnection("127.0.0.1", port, PATIENCE, source_address=("127.0.0.9", 0))
    wire.request("GET", "/version", headers={"X-Forwarded-For": "192.0.2.1", "X-Request-Id": "from-nine"})
    assert wire.getresponse().status == 200
    wire.close()
    server.wait_for("from-nine")
    (line,) = [json.loads(line) for line in server.lines if "from-nine" in line]
    assert line["client"] == line["tenant"] == "127.0.0.9"


def test_stream_is_not_buffered(server: Server, client: httpx.Client) -> None:
    """The first token arrives while the answer goes on, and the request ends with its client."""
    aborted = server.metric("holdfast_request_success_total{.*abort.*}")
    with client.stream("POST", "/v1/completions", json={"prompt": [Prompt.STREAM], "stream": True}) as answer:
        assert next(answer.iter_lines()).startswith("data: {")
    wait_until(lambda: server.metric("holdfast_request_success_total{.*abort.*}") != aborted)


def test_large_bodies_pass_up_to_the_limit(client: httpx.Client) -> None:
    filler = " " * (8 * (1 << 20) - 100)
    headers = {"Content-Type": "application/json"}
    fits = client.post("/v1/completions", content=json.dumps(BODY) + filler, headers=headers)
    assert fits.status_code == 200
    assert client.post("/v1/completions", content=filler + " " * 200, headers=headers).status_code == 413


def test_large_heads_are_refused(client: httpx.Client) -> None:
    assert client.get("/version", headers={"X-Large": "a" * 1_000_000}).status_code == 400
    assert client.get("/" + "a" * 40_000).status_code == 414


def test_offer_of_an_upgrade_is_dropped(client: httpx.Client) -> None:
    """As of Java's client, which offers HTTP/2 with its first request."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAAP__",
    }
    assert client.post("/v1/completions", json=BODY, headers=headers).status_code == 200


def test_one_key_cannot_hold_every_connection(client: httpx.Client, proxy: str) -> None:
    """With 512 requests at once further ones are refused. Another key is served meanwhile."""
    port = httpx.URL(proxy).port or 0
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Api-Key: one\r\nContent-Length: 90\r\n\r\n{"
    with ExitStack() as stack:
        for _ in range(520):  # some more, as one may be refused while `client` has its place
            stack.enter_context(Connection(port)).send(head)
        one = {"X-Api-Key": "one"}
        wait_until(lambda: client.post("/v1/completions", json=BODY, headers=one).status_code == 429)
        assert client.post("/v1/completions", json=BODY, headers={"X-Api-Key": "two"}).status_code == 200
