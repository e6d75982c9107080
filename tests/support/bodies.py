"""Request bodies as bytes with the response that the server must give, and checks of error responses.

200 means that the request is unusual but valid. The served model is tiny: 320 token ids, of which 300 have a
text, and a context of 512.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from support.serving import Server

INTERNALS = (
    *("Traceback", "Error:", "pydantic", "msgspec", "starlette"),
    *("holdfast.", "site-packages", " at 0x", "/src/"),
)
COMPLETIONS, CHAT, SCORE = "/v1/completions", "/v1/chat/completions", "/v1/score"
EMBEDDINGS = "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Body:
    name: str
    path: str
    raw: bytes
    status: int
    code: str | None
    param: str | None
    message: str  # a part of the message

    def __str__(self) -> str:
        return self.name


def raw(
    name: str,
    body: bytes,
    message: str = "",
    code: str | None = None,
    param: str | None = None,
    *,
    status: int = 400,
    path: str = COMPLETIONS,
) -> Body:
    return Body(name, path, body, status, code, param, message)


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def _maker(path: str, **base: Any) -> Callable[..., Body]:
    """Return a function that makes bodies for a path, with these fields and others."""

    def make(
        name: str,
        message: str = "",
        code: str | None = None,
        param: str | None = None,
        *,
        status: int = 400,
        **fields: Any,
    ) -> Body:
        return raw(
            name, json.dumps({**base, **fields}).encode(), message, code, param, status=status, path=path
        )

    return make


completion = _maker(COMPLETIONS, prompt="hi", max_tokens=2)
chat = _maker(CHAT, messages=[user("hi")], max_tokens=2)
embedding = _maker(EMBEDDINGS, input="hi")
response = _maker(RESPONSES, input="hi", max_output_tokens=2)
message = _maker(MESSAGES, messages=[user("hi")], max_tokens=2)  # Anthropic's errors have no param
counted_message = _maker(f"{MESSAGES}/count_tokens", messages=[user("hi")])


@contextmanager
def checked_client(server: Server) -> Iterator[httpx.Client]:
    """At the end the engine process must be the same, be idle, and have logged no exception."""
    engine, num_lines = server.engine_pid, len(server.lines)
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
    server.wait_idle()
    assert server.engine_pid == engine
    assert "Traceback" not in "\n".join(server.lines[num_lines:])


def error_of(response: httpx.Response) -> dict[str, Any]:
    """OpenAI's error object, or Anthropic's in its shape. It must be complete and expose no internals."""
    content = response.json()
    error: dict[str, Any] = content["error"]
    if response.url.path.startswith(MESSAGES):
        assert set(content) == {"type", "error", "request_id"} and content["type"] == "error"
        assert set(error) == {"type", "message", "details"}
        code = error["details"]["error_code"]
        error = {"message": error["message"], "type": error["type"], "param": None, "code": code}
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 1000
    assert not any(one in error["message"] for one in INTERNALS), error
    return error


def answer_of(server: Server, path: str, body: Any) -> dict[str, Any]:
    """The JSON of a request that is answered."""
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def assert_serving(client: httpx.Client) -> None:
    response = client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, timeout=10)
    assert response.status_code == 200, response.text
