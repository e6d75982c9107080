"""A line of a batch file: its request, and what it becomes in the output.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

An output line depends on the input line and on the fingerprint alone. So its ids are made of the input
line, a line without a seed gets one made of it, and what a response says about the moment is left out:
the time, cached tokens, statistics, and whether the answer was certified or verified.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import InvalidRequest

MAX_LINE_BYTES = 8 << 20
_GENERATING = ("/v1/chat/completions", "/v1/completions")
_WITH_RECEIPT = (*_GENERATING, "/v1/score")
ENDPOINTS = (*_WITH_RECEIPT, "/v1/embeddings")
_SEED_DIGITS = 13  # hexadecimal: 52 bits
_ID_DIGITS = 32


class BadLine(InvalidRequest):
    """A line that cannot be sent. param: the field that is wrong."""

    def __init__(self, why: str, param: str | None = None, code: str = "invalid_line") -> None:
        super().__init__(why)
        self.param = param
        self.code = code


@dataclass(frozen=True)
class BatchLine:
    """A line of the input. number counts from 1; raw is None if the line is too long."""

    number: int
    raw: bytes | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.raw or b"%d" % self.number).hexdigest()


@dataclass(frozen=True)
class BatchRequest:
    """A line that can be sent. has_receipt: the client asked for the receipt in the response."""

    id: str
    custom_id: str
    url: str
    body: dict[str, Any]
    has_receipt: bool = False


def read_lines(path: Path) -> Iterator[BatchLine]:
    """Yield the lines of a file that are not blank."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            is_long = len(raw) > MAX_LINE_BYTES
            while is_long and raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            if is_long:
                yield BatchLine(number, None)
            elif raw.strip():
                yield BatchLine(number, raw.strip(b"\r\n"))


class LineParser:
    """Makes requests of the lines of one file, in order. A custom_id may be used once."""

    def __init__(self, *, deterministic: bool = True, endpoint: str | None = None) -> None:
        """deterministic: what a line gets that does not say. endpoint: the only one that is allowed."""
        self._deterministic = deterministic
        self._endpoints = ENDPOINTS if endpoint is None else (endpoint,)
        self._used: dict[str, int] = {}

    def parse(self, line: BatchLine) -> tuple[str | None, BatchRequest | BadLine]:
        """Return the custom_id of a line, as far as it has one, and its request or what is wrong with it."""
        custom_id = None
        try:
            content = _decode(line.raw)
            custom_id = _custom_id(content)
            self._use(custom_id, line.number)
            return custom_id, self._request(content, custom_id, line.digest)
        except BadLine as error:
            return custom_id, error

    def _use(self, custom_id: str, number: int) -> None:
        if custom_id in self._used:
            raise BadLine(
                f"the custom_id is that of line {self._used[custom_id]}; each line needs its own", "custom_id"
            )
        self._used[custom_id] = number

    def _request(self, content: dict[str, Any], custom_id: str, digest: str) -> BatchRequest:
        if content.get("method", "POST") != "POST":
            raise BadLine("method must be POST", "method")
        url, body = content.get("url"), content.get("body")
        if not isinstance(url, str) or url not in self._endpoints:
            raise BadLine(f"url must be {' or '.join(self._endpoints)}", "url")
        if not isinstance(body, dict):
            raise BadLine("body must be an object", "body")
        if body.get("stream"):
            raise BadLine("a batch has whole responses; leave out stream", "stream")
        asked = dict(body)
        if asked.get("deterministic") is None:
            asked["deterministic"] = self._deterministic
        if url in _GENERATING and asked.get("seed") is None:
            asked["seed"] = int(digest[:_SEED_DIGITS], 16)
        has_receipt = bool(asked.get("return_receipt"))
        if url in _WITH_RECEIPT:
            asked["return_receipt"] = True
        return BatchRequest(digest[:_ID_DIGITS], custom_id, url, asked, has_receipt)


def models_of(path: Path) -> set[str]:
    """Return the models that the lines of a file name."""
    parser = LineParser()
    requests = (parser.parse(line)[1] for line in read_lines(path))
    return {str(one.body.get("model")) for one in requests if not isinstance(one, BadLine)}


def output_line(
    line: BatchLine, custom_id: str | None, status: int, body: dict[str, Any], has_receipt: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the line of the output, and the receipts of the response."""
    id_ = line.digest[:_ID_DIGITS]
    receipts = _settle(body, has_receipt) if status == 200 else []
    response = {"status_code": status, "request_id": id_, "body": body}
    return {"id": f"batch_req_{id_}", "custom_id": custom_id, "response": response, "error": None}, receipts


def error_body(error: BadLine) -> dict[str, Any]:
    """Return the error object of a line that was not sent, as the server would write it."""
    about = {"type": "invalid_request_error", "param": error.param, "code": error.code}
    return {"error": {"message": str(error), **about}}


def _settle(body: dict[str, Any], has_receipt: bool) -> list[dict[str, Any]]:
    """Remove from a response what differs from run to run. Return the receipts in it."""
    body["created"] = 0
    body.get("usage", {}).pop("prompt_tokens_details", None)
    about = body.get("holdfast")
    if not isinstance(about, dict):
        return []
    parts = [about, *about.get("requests", ())]
    receipts = [one["receipt"] for one in parts if one.get("receipt") is not None]
    for one in parts:
        for name in ("mode", "stats", *(() if has_receipt else ("receipt",))):
            one.pop(name, None)
    if not any(about.get("requests", ())):
        about.pop("requests", None)
    if not about:
        del body["holdfast"]
    return receipts


def _custom_id(content: dict[str, Any]) -> str:
    custom_id = content.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine("custom_id must be a text that is not empty", "custom_id")
    return custom_id


def _decode(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise BadLine(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_distinct)
    except RecursionError:
        raise BadLine("the line is nested too deeply") from None
    except BadLine:
        raise
    except ValueError as error:
        raise BadLine(f"the line is no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadLine("the line must be an object with custom_id, method, url and body")
    return content


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise BadLine("a name is in an object twice")
    return content


def _refuse(name: str) -> NoReturn:
    raise BadLine(f"{name} is no JSON number")
