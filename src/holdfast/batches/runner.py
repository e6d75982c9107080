"""Sends the lines of a batch that are not answered yet, several at a time.

A refusal that says nothing about the line (the server is busy, starts, or cannot be reached) is tried
again. Any other response is the line's answer, so a hostile line ends alone.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from holdfast.batches.journal import Journal, to_json
from holdfast.batches.lines import (
    BadLine,
    BatchLine,
    BatchRequest,
    LineParser,
    error_body,
    output_line,
    read_lines,
)
from holdfast.errors import ModelGivenUp, ServerError

_BUSY = (429, 503)
_DENIED = (401, 403)
_LONGEST_WAIT = 5.0  # seconds until a request is tried again
_SILENCE_SECONDS = 60.0  # without a response, after which the server counts as gone


class BatchRunner:
    """Answers one batch. What it has answered is in the journal, so it may be stopped at any time."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        journal: Journal,
        parser: LineParser,
        *,
        concurrency: int,
        on_answer: Callable[[dict[str, Any]], None] = lambda output: None,
    ) -> None:
        """on_answer: called with the output of each line that is answered."""
        self._client = client
        self._journal = journal
        self._parser = parser
        self._places = asyncio.Semaphore(concurrency)
        self._on_answer = on_answer
        self._heard = time.monotonic()  # when the server responded last

    async def run(self, path: Path) -> None:
        """Answer all lines of the file. Raise `ServerError` if the server is gone or refuses the key."""
        try:
            async with asyncio.TaskGroup() as group:
                for line in read_lines(path):
                    custom_id, parsed = self._parser.parse(
                        line
                    )  # also one that is answered: its custom_id is used
                    if line.number in self._journal:
                        await asyncio.sleep(0)  # many lines may follow
                        continue
                    await self._places.acquire()
                    group.create_task(self._answer_line(line, custom_id, parsed))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _answer_line(
        self, line: BatchLine, custom_id: str | None, parsed: BatchRequest | BadLine
    ) -> None:
        try:
            if isinstance(parsed, BadLine):
                output, receipts = output_line(line, custom_id, 400, error_body(parsed))
            else:
                status, body = await self._send(parsed)
                output, receipts = output_line(line, custom_id, status, body, parsed.has_receipt)
            self._journal.add(line.number, {"output": output, "receipts": receipts})
            self._on_answer(output)
        finally:
            self._places.release()

    async def _send(self, request: BatchRequest) -> tuple[int, dict[str, Any]]:
        headers = {"X-Request-Id": request.id, "Content-Type": "application/json"}
        content = to_json(request.body)
        while True:
            try:
                response = await self._client.post(request.url, content=content, headers=headers)
            except httpx.TransportError as error:
                if time.monotonic() - self._heard > _SILENCE_SECONDS:
                    raise ServerError(
                        f"the server at {self._client.base_url} is gone: {error or type(error).__name__}"
                    ) from None
                await asyncio.sleep(1)
                continue
            self._heard = time.monotonic()
            if response.status_code in _DENIED:
                raise ServerError(f"the server refuses the API key: {response.text[:300]}")
            if response.status_code not in _BUSY or _is_given_up(response):
                return response.status_code, _content(response)
            await asyncio.sleep(_wait_seconds(response))


def _is_given_up(response: httpx.Response) -> bool:
    """Return whether the line's model failed too often, so that asking again is of no use."""
    error = _content(response).get("error")
    return isinstance(error, dict) and error.get("code") == ModelGivenUp.code


def _wait_seconds(response: httpx.Response) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.1, float(response.headers.get("Retry-After", 1))))
    except ValueError:
        return 1.0


def _content(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    return {"error": {"message": response.text[:300], "type": "server_error", "param": None, "code": None}}
