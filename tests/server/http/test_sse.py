"""A stream of events ends with its resources closed, also after an error or when its client does not read.
An event is one line of data to every client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.server.errors import ApiError
from holdfast.server.http.sse import EventStreamResponse, sse_event
from support.asgi import Sent, silence

HTTP = {"type": "http"}


def bodies(events: AsyncIterator[bytes]) -> list[bytes]:
    sent = Sent()
    asyncio.run(EventStreamResponse(events, AsyncExitStack(), send_timeout=60.0)(HTTP, silence, sent))
    return [message["body"] for message in sent[1:]]


def test_events_before_an_error_are_sent_before_it() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        raise ApiError(500, "broken")

    first, error, last = bodies(failing())
    assert first == b"a"
    assert error.startswith(b"data: {") and b"broken" in error and error.endswith(b"data: [DONE]\n\n")
    assert last == b""


def test_data_is_one_line_whatever_it_holds() -> None:
    """U+0085, U+2028 and U+2029 end a line for many clients, httpx among them; JSON does not escape them."""
    said = {"text": "a\u2028b\u2029c\x85d\n\r\x0b\x0c\x1c\x1d\x1e é …"}
    name, data, end = sse_event(said, "step").decode().splitlines()
    assert (name, end) == ("event: step", "")
    assert json.loads(data.removeprefix("data: ")) == said and data.endswith('é …"}')


@pytest.mark.anyio
async def test_resources_are_closed_before_the_client_sees_the_end() -> None:
    """A client that sends its next request then must find its place free."""
    order: list[str] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            order.append("more" if message["more_body"] else "end")

    async def answer(fails: bool) -> AsyncIterator[bytes]:
        yield b"a"
        if fails:
            raise ApiError(500, "broken")

    async def run(fails: bool) -> None:
        resources = AsyncExitStack()
        resources.callback(order.append, "closed")
        await EventStreamResponse(answer(fails), resources, send_timeout=60.0)(HTTP, silence, send)

    await run(False)
    assert order == ["more", "closed", "end"]
    order.clear()
    await run(True)
    assert order[-2:] == ["closed", "end"]


@pytest.mark.anyio
async def test_client_that_takes_nothing_counts_as_disconnected() -> None:
    """A write that waits ends the stream; time without events does not."""
    ended: list[str] = []
    num_writes = 0

    async def send(message: Any) -> None:
        nonlocal num_writes
        num_writes += message["type"] == "http.response.body"
        if num_writes == 3:
            await asyncio.Event().wait()

    async def answer() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            await asyncio.sleep(0.3)
            yield b"b"
            yield b"c"
        finally:
            ended.append("stream")

    events, resources = answer(), AsyncExitStack()
    resources.callback(ended.append, "resources")
    response = EventStreamResponse(events, resources, send_timeout=0.1)
    await asyncio.wait_for(response(HTTP, silence, send), 10)
    await events.aclose()
    assert num_writes == 3 and "resources" in ended
