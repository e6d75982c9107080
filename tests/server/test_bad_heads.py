"""Bad heads, paths and request ids over HTTP: they are refused or replaced, and the next request is served."""

import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.bodies import assert_serving, checked_client, error_of
from support.raw_http import Connection
from support.serving import Server


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    with checked_client(tiny_server) as client:
        yield client


# Routes of other servers that change or expose internals (SGLang's /flush_cache and /update_weights_from_*, vLLM's
# /sleep and /collective_rpc, llama.cpp's /slots and /props), and paths outside the server's own files.
UNKNOWN_PATHS = (
    "/flush_cache", "/update_weights_from_disk", "/collective_rpc", "/slots/0?action=erase", "/props",
    "/redoc", "/v1", "//", "/v1//models", "/v1/models/", "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd", "/inspector/../../../config.py", "/inspector/%2e%2e%2froutes.py",
    "/inspector/main.js%00.py", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/%0d%0aset-cookie:x",
    "/v1/models/%ed%a0%80", "/v1/models/" + "a" * 8000, "/v1/models/%e2%80%ae",
    "/v1/completions%20", "/V1/COMPLETIONS", "/v1/completions/", "/health%00",
)  # fmt: skip


@pytest.mark.parametrize("path", UNKNOWN_PATHS, ids=lambda one: one[:40])
def test_unknown_path_is_refused(tiny_server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        response = ask(tiny_server, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        assert response.status_code in ((400, 404) if method == "GET" else (400, 404, 405)), response.text
        error_of(response)
        assert "set-cookie" not in response.headers and "root:" not in response.text


def ask(server: Server, raw: bytes) -> httpx.Response:
    """Send bytes as they are."""
    with Connection(httpx.URL(server.url).port or 0) as wire:
        wire.send(raw)
        reply = wire.read()
    request = httpx.Request("GET", server.url)  # the path may be none that httpx accepts
    return httpx.Response(reply.status, headers=reply.all_headers, content=reply.body, request=request)


def post(
    body: bytes = b'{"prompt": "a", "max_tokens": 1}', *headers: str, length: str | None = None
) -> bytes:
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {length or len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


BOMB = gzip.compress(b"[" * 50_000_000)
JSON_TYPE = "Content-Type: application/json"
# One request for each layer; the tables are in `middleware/test_body_limits` and `middleware/test_origins`.
BAD_HEADS: dict[str, tuple[bytes, int]] = {
    "no content type": (post(), 415),
    "two content types": (post(b"x", "Content-Type: text/plain", JSON_TYPE), 415),
    "compressed body": (post(BOMB, JSON_TYPE, "Content-Encoding: gzip"), 415),
    "length beyond the limit": (post(b"{}", JSON_TYPE, length=str(1 << 40)), 413),
    "another host": (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "another host in the target": (
        b"GET http://evil.example/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
        403,
    ),
    "another origin": (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
        403,
    ),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_bad_head_is_refused(tiny_server: Server, client: httpx.Client, name: str) -> None:
    raw, status = BAD_HEADS[name]
    response = ask(tiny_server, raw)
    assert response.status_code == status, response.text
    assert error_of(response)["message"] and "set-cookie" not in response.headers
    assert_serving(client)


NO_HTTP = (
    post(b"{}", JSON_TYPE, "Content-Length: 9"),
    post(b"{}", JSON_TYPE, "Transfer-Encoding: chunked"),
    post(b"{}", JSON_TYPE, "X-Request-Id: a\nSet-Cookie: x=1"),
    post(b"{}", JSON_TYPE, "X-Request-Id: a\rSet-Cookie: x=1"),
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
)


@pytest.mark.parametrize("raw", NO_HTTP, ids=range(len(NO_HTTP)))
def test_what_is_no_http_is_refused(tiny_server: Server, client: httpx.Client, raw: bytes) -> None:
    """uvicorn answers in plain text, and no route sees it."""
    response = ask(tiny_server, raw)
    assert response.status_code == 400 and "set-cookie" not in response.headers
    assert_serving(client)


def test_body_after_the_offer_of_an_upgrade_is_refused(tiny_server: Server, client: httpx.Client) -> None:
    """Java's client offers HTTP/2 with its first request."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    response = ask(tiny_server, post(b"{}", JSON_TYPE, *upgrade))
    assert response.status_code == 400 and "without Upgrade" in error_of(response)["message"]
    assert_serving(client)


def test_requests_may_share_a_request_id(client: httpx.Client) -> None:
    """A server that keys its requests by the client's id would mix up the responses, or fail."""
    prompts = [f"{one} the quick" for one in range(12)]

    def answer(prompt: str, headers: dict[str, str]) -> str:
        body = {"prompt": prompt, "max_tokens": 24, "seed": 3, "deterministic": True}
        choice = client.post("/v1/completions", json=body, headers=headers).json()["choices"][0]
        return str(choice["text"])

    alone = [answer(prompt, {}) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: answer(prompt, {"x-request-id": "mine"}), prompts))
    assert together == alone and len(set(alone)) > 1
