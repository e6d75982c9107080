"""A client of an OpenAI-compatible server: its first model, and streamed chat answers.

The connection is httpx's, without proxies, redirects or credentials from the environment, and with
the system's certificates. Events are split here: httpx's `iter_lines` also splits at characters,
such as U+2028, that an event may contain.
"""

import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from holdfast.core.results import Thought
from holdfast.errors import ConfigError, PromptTooLong, ServerError

Show = Callable[[str, Sequence[Thought]], None]

_TIMEOUT = 300.0  # seconds without a byte
_MAX_ERROR_BYTES = 1 << 16


@dataclass
class StreamedAnswer:
    """What has arrived of an answer. error: what went wrong after its text began."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    holdfast: dict[str, Any] | None = None
    error: str | None = None

    def update(self, event: bytes) -> tuple[str, tuple[Thought, ...]]:
        """Take one event of the stream; returns its text and its thoughts."""
        before = len(self.text)
        try:
            chunk = json.loads(event)
            if chunk.get("error") is not None:
                self.error, _ = _parse_error(event)
                return "", ()
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta", {})
                text = delta.get("content") or ""
                reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
                self.text += text
                self.reasoning += reasoning
                self.num_tokens += bool(text or reasoning)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if chunk.get("usage"):
                self.num_tokens = int(chunk["usage"]["completion_tokens"])
            self.holdfast = chunk.get("holdfast") or self.holdfast
        except (ValueError, KeyError, TypeError, AttributeError):
            self.error = f"an event is no part of a completion: {event[:80]!r}"
            return "", ()
        return self.text[before:], _thoughts(chunk)

    @property
    def summary(self) -> str:
        """Mode, length, seed and finish reason as in `mode_line`, as far as the server sends them."""
        about = self.holdfast or {}
        parts = [f"{self.num_tokens} tokens", str(self.finish_reason)]
        if "mode" in about:
            parts.insert(0, "ordinary" if about["mode"] == "none" else str(about["mode"]))
        if "seed" in about:
            parts.insert(-1, f"seed {about['seed']}")
        return " · ".join(parts)


class ChatServer:
    """Send requests to one server. A connection serves one request and is closed after it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = _base_url(url)
        self._client = httpx.Client(
            headers=_key_header(api_key),
            timeout=_TIMEOUT,
            verify=ssl.create_default_context(),
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def first_model(self) -> str:
        try:
            with self._send("GET", "/v1/models") as response:
                return str(json.loads(response.read())["data"][0]["id"])
        except httpx.HTTPError as error:
            raise self._failure(error) from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise ServerError(f"the server at {self._url} names no model; give one with --model") from None

    def stream(
        self, body: dict[str, Any], show: Show, show_reasoning: Callable[[str], None] = lambda text: None
    ) -> StreamedAnswer:
        """Return one answer. Call `show` with its text and thoughts as they arrive, and
        `show_reasoning` with the thinking before its text.

        Ctrl-C ends it by closing the connection, which aborts the request. Raise `ServerError` if no text
        arrives, `PromptTooLong` if the server says so. An error after that is in the answer.
        """
        answer = StreamedAnswer()
        try:
            with self._send("POST", "/v1/chat/completions", body) as response:
                for event in _events(response.iter_bytes()):
                    if event != b"[DONE]":
                        before = len(answer.reasoning)
                        new = answer.update(event)
                        show_reasoning(answer.reasoning[before:])
                        show(*new)
            if answer.finish_reason is None and answer.error is None:
                raise httpx.RemoteProtocolError("the stream ended early")
        except KeyboardInterrupt:
            answer.finish_reason = "abort"
        except httpx.HTTPError as error:
            failure = self._failure(error)
            if not answer.text:
                raise failure from None
            answer.error = str(failure)
        return answer

    @contextmanager
    def _send(self, method: str, path: str, body: Any = None) -> Iterator[httpx.Response]:
        with self._client.stream(method, f"{self._url}{path}", json=body) as response:
            if response.status_code != 200:
                said, code = _parse_error(_read_error(response))
                refusal = PromptTooLong if code == PromptTooLong.code else ServerError
                raise refusal(f"the server says {response.status_code}: {said}")
            yield response

    def _failure(self, error: httpx.HTTPError) -> ServerError:
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
            return ServerError(f"the server at {self._url} ended the connection inside an answer")
        return ServerError(f"the server at {self._url} cannot be reached: {_reason(error)}")


def _base_url(text: str) -> str:
    """Return the URL in front of the routes: http:// may be left out, a last /v1 is removed."""
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{text!r} is no address of a server: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text!r} is no address of a server; give one such as http://127.0.0.1:8000")
    plain = url.copy_with(userinfo=b"", query=None, fragment=None)
    return str(plain).rstrip("/").removesuffix("/v1")


def _key_header(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key. A key that would break it is refused."""
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ConfigError("an API key is printable ASCII without spaces around it")
    return {"Authorization": f"Bearer {api_key}"}


def _events(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest, data = b"", []
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []


def _read_error(response: httpx.Response) -> bytes:
    body = b""
    try:
        for block in response.iter_bytes():
            body += block
            if len(body) > _MAX_ERROR_BYTES:
                break
    except httpx.HTTPError:
        pass  # what has arrived says enough
    return body[:_MAX_ERROR_BYTES]


def _parse_error(body: bytes) -> tuple[str, str | None]:
    """Return the message of an error on one line, and its code, in OpenAI's shape or in any other."""
    try:
        content = json.loads(body)
        error = content["error"] if isinstance(content.get("error"), dict) else content
        said, code = error["message"], error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        said, code = body[:200].decode(errors="replace"), None
    return " ".join(str(said).split()), code if isinstance(code, str) else None


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _thoughts(chunk: dict[str, Any]) -> tuple[Thought, ...]:
    try:
        return msgspec.convert((chunk.get("holdfast") or {}).get("thoughts") or (), tuple[Thought, ...])
    except (msgspec.ValidationError, AttributeError):
        return ()
