"""What brought other servers down gets a clear refusal here, and the next request its answer.

The bodies are in `support/hostile_*`; here are also hostile heads, paths and templates.
"""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.hostile import Hostile
from support.hostile_shapes import conversations, forms
from support.hostile_values import numbers, texts, token_ids
from support.raw_http import Connection
from support.serving import Server

JSON = {"content-type": "application/json"}
INSIDES = (
    "Traceback",
    "Error:",
    "pydantic",
    "msgspec",
    "starlette",
    "holdfast.",
    "site-packages",
    " at 0x",
    "/src/",
)


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    """Whatever the tests of this module send, the server and its engine are the same when they are over, and at rest."""
    engine, num_lines = tiny_server.engine_pid, len(tiny_server.lines)
    with httpx.Client(base_url=tiny_server.url, timeout=30) as client:
        yield client
    tiny_server.wait_idle()
    assert tiny_server.engine_pid == engine
    assert "Traceback" not in "\n".join(tiny_server.lines[num_lines:])


def refusal(answer: httpx.Response) -> dict[str, Any]:
    """The error, which is whole and says nothing of our insides."""
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 1000
    assert not any(one in error["message"] for one in INSIDES), error
    return error


def assert_well(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, timeout=10)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "hostile",
    [*numbers(), *token_ids(), *texts(), *conversations(), *forms()],
    ids=lambda one: one.name,
)
def test_a_hostile_body_gets_its_answer(client: httpx.Client, hostile: Hostile) -> None:
    answer = client.post(hostile.path, content=hostile.body, headers=JSON)
    assert answer.status_code == hostile.status, answer.text[:500]
    if hostile.status == 200:
        json.loads(answer.text, parse_constant=pytest.fail)
    else:
        assert hostile.says.lower() in refusal(answer)["message"].lower()
    assert_well(client)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/score", "/v1/replay"]
)
def test_every_field_may_be_null_or_wrong_and_one_is_named(client: httpx.Client, path: str) -> None:
    document = client.get("/openapi.json").json()
    name = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = document["components"]["schemas"][name.rpartition("/")[2]]["properties"]
    for field in fields:
        for value in (-7, 0.5, "\0", [[[]]], {"": None}, [None], [{}]):
            answer = client.post(path, json={"prompt": "a", "max_tokens": 1, field: value})
            assert answer.status_code in (200, 400, 404)
            assert answer.status_code == 200 or refusal(answer)["message"]
    nothing = client.post(path, json=dict.fromkeys(fields))
    assert nothing.status_code == 400 and refusal(nothing)
    assert_well(client)


# Routes of others that change or show what a stranger should not (SGLang's /flush_cache and /update_weights_from_*, vLLM's
# /sleep and /collective_rpc, llama.cpp's /slots and /props), and paths that leave the server's own files.
STRANGE_PATHS = (
    *(
        "/flush_cache",
        "/update_weights_from_tensor",
        "/update_weights_from_disk",
        "/release_memory_occupation",
    ),
    *(
        "/start_profile",
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/load_lora_adapter",
    ),
    *(
        "/slots",
        "/slots/0?action=erase",
        "/props",
        "/infill",
        "/completion",
        "/get_server_info",
        "/server_info",
    ),
    *("/pause", "/abort_request", "/docs", "/redoc", "/v1", "//", "/v1//models", "/v1/models/"),
    *(
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/inspector/../../../config.py",
        "/inspector/%2e%2e%2froutes.py",
    ),
    *(
        "/inspector/..%5c..%5croutes.py",
        "/inspector/index.html",
        "/inspector/main.js%00.py",
        "/inspector/%ff",
    ),
    *(
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%2fetc%2fpasswd",
        "/v1/models/tiny/../../x",
        "/v1/models/tiny%00",
    ),
    *(
        "/v1/models/%0d%0aset-cookie:x",
        "/v1/models/%ed%a0%80",
        "/v1/models/" + "a" * 8000,
        "/v1/models/%e2%80%ae",
    ),
    *(
        "/v1/completions%20",
        "/V1/COMPLETIONS",
        "/v1/completions/",
        "/health%00",
        "/\u0000".encode().decode("latin-1"),
    ),
)


@pytest.mark.parametrize("path", STRANGE_PATHS, ids=lambda one: one[:40])
def test_there_is_nothing_elsewhere(tiny_server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        answer = ask(tiny_server, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        assert answer.status_code in ((400, 404) if method == "GET" else (400, 404, 405)), answer.text
        refusal(answer)
        assert "set-cookie" not in answer.headers and "root:" not in answer.text


def ask(server: Server, raw: bytes) -> httpx.Response:
    """Send bytes as they are."""
    with Connection(httpx.URL(server.url).port or 0) as wire:
        wire.send(raw)
        reply = wire.read()
    return httpx.Response(reply.status, headers=reply.all_headers, content=reply.body)


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
HEADS: dict[str, tuple[bytes, int]] = {
    # What is not JSON, or only after it was made larger.
    "no content type": (post(), 415),
    "a form": (post(b"prompt=a", "Content-Type: application/x-www-form-urlencoded"), 415),
    "a form of parts": (post(b"--x--", "Content-Type: multipart/form-data; boundary=x"), 415),
    "a pickle": (post(b"\x80\x04.", "Content-Type: application/octet-stream"), 415),
    "UTF-16": (post(b"{}", "Content-Type: application/json; charset=utf-16"), 415),
    "two content types": (post(b"x", "Content-Type: text/plain", JSON_TYPE), 415),
    "a bomb": (post(BOMB, JSON_TYPE, "Content-Encoding: gzip"), 415),
    "a bomb in a bomb": (post(BOMB, JSON_TYPE, "Content-Encoding: gzip, gzip"), 415),
    "brotli": (post(b"x", JSON_TYPE, "Content-Encoding: br"), 415),
    # Heads without end (CVE-2025-48956).
    "a header of 1 MB": (post(b"{}", JSON_TYPE, "X-Large: " + "a" * 1_000_000), 431),
    "10,000 headers": (post(b"{}", JSON_TYPE, *(f"X-{one}: 1" for one in range(10_000))), 431),
    "a path of 1 MB": (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    # Bodies whose end two readers see in two places.
    "two lengths": (post(b"{}", JSON_TYPE, "Content-Length: 9"), 400),
    "a length and chunks": (post(b"0\r\n\r\n", JSON_TYPE, "Transfer-Encoding: chunked"), 400),
    "a negative length": (post(b"{}", JSON_TYPE, length="-1"), 400),
    "a length of 5000 digits": (post(b"{}", JSON_TYPE, length="9" * 5000), 400),
    "a length in hexadecimal": (post(b"{}", JSON_TYPE, length="0x2"), 400),
    "a length beyond the limit": (post(b"{}", JSON_TYPE, length=str(1 << 40)), 413),
    # Text that becomes a header or a line of the log.
    "a bare line feed": (post(b"{}", JSON_TYPE, "X-Request-Id: a\nSet-Cookie: x=1"), 400),
    "a bare carriage return": (post(b"{}", JSON_TYPE, "X-Request-Id: a\rSet-Cookie: x=1"), 400),
    "a folded header": (post(b"{}", JSON_TYPE, "X-Request-Id: a", " Set-Cookie: x=1"), 400),
    "NUL in a header": (post(b"{}", JSON_TYPE, "X-Request-Id: a\0b"), 400),
    # Other protocols, other hosts.
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64, 400),
    "a proxy's request": (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "another host": (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "another origin": (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
        403,
    ),
    "a method of its own": (b"PICKLE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_hostile_head_gets_its_answer(tiny_server: Server, client: httpx.Client, name: str) -> None:
    raw, status = HEADS[name]
    answer = ask(tiny_server, raw)
    assert answer.status_code == status, answer.text
    assert refusal(answer)["message"] and "set-cookie" not in answer.headers
    assert_well(client)


@pytest.mark.parametrize("given", ["", "a" * 65, "a b", "a;b", "../x", '{"a": 1}', "\u00e9", "a,b"])
def test_an_id_that_could_do_harm_is_replaced(tiny_server: Server, given: str) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    answer = ask(tiny_server, post(body, JSON_TYPE, f"X-Request-Id: {given}"))
    assert answer.status_code == 200 and answer.headers["x-request-id"] != given
    assert answer.json()["id"] == f"cmpl-{answer.headers['x-request-id']}"


def test_many_requests_may_have_one_id(client: httpx.Client) -> None:
    """Servers that kept requests by the client's id mixed up their answers, or died of the second."""
    prompts = [f"{one} the quick" for one in range(12)]

    def answer(prompt: str, headers: dict[str, str]) -> str:
        body = {"prompt": prompt, "max_tokens": 24, "seed": 3, "deterministic": True}
        choice = client.post("/v1/completions", json=body, headers=headers).json()["choices"][0]
        return str(choice["text"])

    alone = [answer(prompt, {}) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: answer(prompt, {"x-request-id": "mine"}), prompts))
    assert together == alone and len(set(alone)) > 1


# Text that a template engine would run (CVE-2025-61620; SGLang and llama.cpp render what clients send, too).
@pytest.mark.parametrize(
    "text",
    [
        "{{ 7 * 7 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{# hidden #}{% raw %}",
        "{{ messages }} {{ raise_exception('x') }}",
        "${7*7} <%= 7*7 %> #{7*7} %s %n {0}",
        "\u202e\u0000\u0085\u2028",
    ],
)
def test_text_stays_text_in_a_template(client: httpx.Client, text: str) -> None:
    for role, content, parts in (
        ("user", text, text),
        (text, "a", "a"),
        ("user", text, [{"type": "text", "text": text}]),
    ):
        rendered = client.post("/tokenize", json={"messages": [{"role": role, "content": parts}]})
        assert rendered.status_code == 200, rendered.text
        tokens = rendered.json()["tokens"]
        shown = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        assert shown == f"<|im_start|>{role}\n{content}<|im_end|>\n<|im_start|>assistant\n"
