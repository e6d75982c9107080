"""Resumable streams: what a client gets that comes back, who may come back, and what is kept."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect
from starlette.types import Message

from holdfast.server.errors import ApiError
from holdfast.server.http.responses import KEEP_ALIVE, sse_event
from holdfast.server.streams import event_log
from holdfast.server.streams.responses import ResumableStreamResponse, ResumedStreamResponse
from holdfast.server.streams.stream_store import StreamStore
from holdfast.server.telemetry.stream_metrics import StreamMetrics
from holdfast.server.tenants.tenant import Tenant, address_tenant, key_tenant
from support.asgi import scope_of

PATH = "/v1/completions"
BODY = b'{"prompt": "a"}'
ALICE, BOB = key_tenant("alice"), key_tenant("bob")
WAIT = 20.0


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def watched() -> None:
        async with asyncio.timeout(WAIT):
            await scene()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    asyncio.run(watched())


def make_store(seconds: float = WAIT, max_bytes: int = 1 << 20) -> tuple[StreamStore, StreamMetrics]:
    metrics = StreamMetrics(CollectorRegistry())
    return StreamStore(seconds, max_bytes, metrics), metrics


class Connection:
    """A client's side of one response."""

    def __init__(self, response: Any) -> None:
        self.body = b""
        self.is_complete = False
        self._left = asyncio.Event()
        self._arrived = asyncio.Event()
        self.task = asyncio.create_task(response(scope_of("POST", PATH), self._receive, self._send))

    async def wait_for(self, text: bytes) -> bytes:
        """Everything so far, once this is in it."""
        while text not in self.body:
            self._arrived.clear()
            await self._arrived.wait()
        return self.body

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._left.is_set():
            self.body += message.get("body", b"")
            self.is_complete = message.get("more_body") is False
            self._arrived.set()


class Answer:
    """A stream of numbers, each when the test says so."""

    def __init__(self, store: StreamStore, tenant: Tenant = ALICE, error: ApiError | None = None) -> None:
        self.ended: BaseException | str | None = None
        self._next: asyncio.Queue[int | None] = asyncio.Queue()
        self._error = error
        resources = AsyncExitStack()
        resources.push(self._on_end)
        self.response = ResumableStreamResponse(
            self._events(), resources, lambda: store.open(tenant, PATH, BODY)
        )

    def say(self, *numbers: int | None) -> None:
        for number in numbers:
            self._next.put_nowait(number)

    def _on_end(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.ended = error or "complete"

    async def _events(self) -> AsyncIterator[bytes]:
        yield KEEP_ALIVE
        while (number := await self._next.get()) is not None:
            yield sse_event(number)
        if self._error is not None:
            raise self._error


def event_ids(body: bytes) -> list[str]:
    return re.findall(r"^id: (.+)$", body.decode(), re.MULTILINE)


def resume(store: StreamStore, event_id: str, tenant: Tenant = ALICE, body: bytes = BODY) -> Connection:
    return Connection(ResumedStreamResponse(lambda: store.resume(event_id, tenant, PATH, body)))


def refusal(
    store: StreamStore, event_id: str, tenant: Tenant = ALICE, path: str = PATH, body: bytes = BODY
) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as raised:
        store.resume(event_id, tenant, path, body)
    return raised.value.status, raised.value.code


def test_client_gets_exactly_the_rest_while_the_answer_goes_on() -> None:
    async def scene() -> None:
        store, metrics = make_store()
        answer = Answer(store)
        first = Connection(answer.response)
        answer.say(0, 1)
        await first.wait_for(b"data: 1\n\n")
        first.leave()
        answer.say(2)
        while not metrics.detached._value.get():
            await asyncio.sleep(0.001)
            store.measure()
        assert answer.ended is None and not first.task.done()
        assert metrics.detached._value.get() == 1
        second = resume(store, event_ids(first.body)[0], body=b"")
        answer.say(3, None)
        await asyncio.gather(first.task, second.task)
        token = event_ids(first.body)[0].rsplit("-", 1)[0]
        assert second.body == b"".join(b"id: %b-%d\ndata: %d\n\n" % (token.encode(), n, n) for n in (1, 2, 3))
        assert second.is_complete and answer.ended == "complete"
        assert metrics.resumed._value.get() == 1

    run(scene)


def test_complete_answer_is_kept() -> None:
    async def scene() -> None:
        store, _ = make_store()
        answer = Answer(store)
        first = Connection(answer.response)
        answer.say(0, 1, None)
        await first.task
        assert first.is_complete
        ids = event_ids(first.body)
        for number, rest in ((0, b"id: %b\ndata: 1\n\n" % ids[1].encode()), (1, b"")):
            again = resume(store, ids[number])
            await again.task
            assert again.is_complete and again.body == rest
        assert refusal(store, ids[0].removesuffix("-0") + "-2") == (400, "invalid_value")

    run(scene)


def test_newer_client_takes_over() -> None:
    async def scene() -> None:
        store, _ = make_store()
        answer = Answer(store)
        first = Connection(answer.response)
        answer.say(0)
        second = resume(store, event_ids(await first.wait_for(b"data: 0\n\n"))[0])
        await first.wait_for(b"stream_taken_over")
        answer.say(1, None)
        await asyncio.gather(first.task, second.task)
        assert b"data: 1\n\n" in second.body and b"data: 1\n\n" not in first.body
        assert first.is_complete and second.is_complete

    run(scene)


def test_error_of_the_answer_reaches_the_client_that_came_back() -> None:
    async def scene() -> None:
        store, _ = make_store()
        error = ApiError(500, "broken", code="pass_failed")
        answer = Answer(store, error=error)
        first = Connection(answer.response)
        answer.say(0)
        await first.wait_for(b"data: 0\n\n")
        first.leave()
        answer.say(None)
        await first.task
        assert answer.ended is error
        again = resume(store, event_ids(first.body)[0])
        await again.task
        assert b"pass_failed" in again.body and again.body.endswith(b"data: [DONE]\n\n")
        assert len(event_ids(again.body)) == 2

    run(scene)


def test_abandoned_stream_is_aborted_and_gone() -> None:
    async def scene() -> None:
        store, metrics = make_store(seconds=0.05)
        answer = Answer(store)
        first = Connection(answer.response)
        answer.say(0)
        await first.wait_for(b"data: 0\n\n")
        await asyncio.sleep(0.1)
        assert answer.ended is None  # its client is there
        first.leave()
        await first.task
        assert isinstance(answer.ended, ClientDisconnect)
        assert refusal(store, event_ids(first.body)[0]) == (410, "stream_gone")
        store.measure()
        gauges = (metrics.kept, metrics.detached, metrics.num_bytes, metrics.abandoned)
        assert [one._value.get() for one in gauges] == [0, 0, 0, 1]

    run(scene)


def test_only_its_owner_finds_a_stream() -> None:
    async def scene() -> None:
        store, _ = make_store()
        log, reader = store.open(ALICE, PATH, BODY)
        log.add(b"data: 0\n\n")
        event_id = event_ids(log[0])[0]
        other, _ = make_store()
        for one in (
            refusal(store, event_id, BOB),
            refusal(store, event_id, address_tenant("10.0.0.1")),
            refusal(store, event_id, path="/v1/messages"),
            refusal(store, event_id[:5] + ("A" if event_id[5] != "A" else "B") + event_id[6:]),
            refusal(store, event_id.rsplit("-", 1)[0]),
            refusal(store, "nonsense"),
            refusal(store, "17"),
            refusal(other, event_id),
        ):
            assert one == (404, "stream_not_found")
        assert refusal(store, event_id, body=b"{}") == (400, "invalid_value")
        store.resume(event_id, ALICE, PATH, b"").close()
        reader.close()
        log.end()
        anonymous, _ = store.open(address_tenant("10.0.0.1"), PATH, BODY)
        anonymous.add(b"data: 0\n\n")
        store.resume(event_ids(anonymous[0])[0], address_tenant("10.0.0.2"), PATH, BODY)

    run(scene)


def test_memory_is_bounded_and_the_largest_tenant_gives_way() -> None:
    async def scene() -> None:
        store, metrics = make_store(max_bytes=64_000)

        def keep(tenant: Tenant, *, is_read: bool = False) -> str:
            log, reader = store.open(tenant, PATH, BODY)
            log.add(b"data: " + b"x" * 8_000 + b"\n\n")
            if is_read:
                reader.next = 1
            else:
                reader.close()
            return event_ids(log[0])[0]

        small = keep(BOB)
        large = [keep(ALICE) for _ in range(10)]
        assert refusal(store, large[0]) == refusal(store, large[3]) == (410, "stream_gone")
        for event_id, tenant in ((small, BOB), (large[9], ALICE)):
            store.resume(event_id, tenant, PATH, BODY).close()
        reading = [keep(ALICE, is_read=True) for _ in range(20)]
        store.measure()
        assert metrics.num_bytes._value.get() <= 64_000
        assert metrics.kept._value.get() >= 21  # streams with a reader stay
        store.resume(small, BOB, PATH, BODY).close()
        store.resume(reading[0], ALICE, PATH, BODY).close()  # the next event is to come

    run(scene)


def test_reader_writes_comments_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_QUIET_SECONDS", 0.01)

    async def scene() -> None:
        store, _ = make_store()
        answer = Answer(store)
        first = Connection(answer.response)
        await first.wait_for(b": keep-alive\n")
        answer.say(0, None)
        await first.task
        assert first.body.replace(b": keep-alive\n", b"").startswith(b"id: ")

    run(scene)
