"""The hub: snapshots, steps, slow subscribers, and tracing only while a page is subscribed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.engine.tracer import PassTrace
from holdfast.errors import NotReady, TooBusy
from holdfast.server.inspector import hub as hub_module
from holdfast.server.inspector.hub import MAX_QUEUED, MAX_SUBSCRIBERS, Hub
from support.step_traces import FIRST, REQUEST, step

pytestmark = pytest.mark.anyio


@pytest.fixture
def tracing() -> list[bool]:
    """The hub's calls of `set_tracing`."""
    return []


@pytest.fixture
def hub(tracing: list[bool]) -> Hub:
    return Hub(lambda token_id: f"<{token_id}>", tracing.append)


@asynccontextmanager
async def subscribed(hub: Hub, tenant: str | None = None) -> AsyncGenerator["Page", None]:
    page = Page(hub, tenant)
    assert await page.frame() == b"retry: 2000\n\n"
    try:
        yield page
    finally:
        await page.events.aclose()


class Page:
    """Reads events one at a time."""

    def __init__(self, hub: Hub, tenant: str | None = None) -> None:
        self.events = hub.events(tenant)

    async def frame(self) -> bytes:
        async with asyncio.timeout(10):
            return await anext(self.events)

    async def read(self) -> tuple[str, dict[str, Any]]:
        lines = (await self.frame()).decode().split("\n")
        assert lines[2:] == ["", ""]
        return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


async def test_tracing_is_on_only_while_a_page_is_subscribed(hub: Hub, tracing: list[bool]) -> None:
    hub.publish(FIRST)
    assert tracing == []
    async with subscribed(hub):
        assert tracing == [True]
        async with subscribed(hub):
            assert hub.num_subscribers == 2
        assert tracing == [True]
    assert tracing == [True, False]
    assert hub.num_subscribers == 0


async def test_snapshot_comes_before_steps(hub: Hub) -> None:
    async with subscribed(hub) as page:
        kind, data = await page.read()
        assert (kind, data["requests"], data["num_pages"]) == ("snapshot", [], 0)
        hub.publish(FIRST)
        kind, data = await page.read()
        assert (kind, data["step"], data["pages_used"], data["num_pages"]) == ("snapshot", 1, 1, 10)
        (request,) = data["requests"]
        assert (request["from"], request["tokens"], request["candidates"]) == (
            0,
            ["<1>", "<2>", "<3>"],
            ["<4>"],
        )
        changed = replace(
            REQUEST,
            committed_start=3,
            committed_len=4,
            committed_ids=(5,),
            candidate_ids=(),
            rolled_back_start=3,
            rolled_back_ids=(4,),
        )
        hub.publish(step(2, changed))
        kind, data = await page.read()
        assert (kind, data["step"]) == ("step", 2)
        assert data["passes"] == [
            {
                "kind": "fast",
                "certified": False,
                "num_tokens": 1,
                "num_tokens_padded": 1,
                "spans": [[7, 3, 1]],
            }
        ]
        (request,) = data["requests"]
        assert (request["from"], request["tokens"], request["candidates"]) == (3, ["<5>"], [])
        assert (request["rolled_back_from"], request["rolled_back"]) == (3, ["<4>"])


async def test_slow_subscriber_gets_a_new_snapshot(hub: Hub) -> None:
    async with subscribed(hub) as slow, subscribed(hub) as quick:
        for page in (slow, quick):
            await page.read()
        hub.publish(FIRST)
        for page in (slow, quick):
            await page.read()
        for number in range(MAX_QUEUED + 5):
            hub.publish(step(2 + number))
            assert (await quick.read())[1]["step"] == 2 + number
        kind, data = await slow.read()
        assert (kind, data["step"]) == ("snapshot", MAX_QUEUED + 6)
        assert len(data["requests"]) == 1
        hub.publish(step(100))
        assert (await slow.read())[0] == "step"


async def test_hub_refuses_too_many_watchers(hub: Hub, tracing: list[bool]) -> None:
    pages = [Page(hub) for _ in range(MAX_SUBSCRIBERS)]
    for page in pages:
        await page.frame()
    with pytest.raises(TooBusy):
        hub.require_capacity()
    with pytest.raises(TooBusy):  # also one that did not check before
        await Page(hub).frame()
    assert hub.num_subscribers == MAX_SUBSCRIBERS
    await pages[0].events.aclose()
    hub.require_capacity()
    for page in pages[1:]:
        await page.events.aclose()
    assert tracing == [True, False]


async def test_page_of_a_tenant_shows_its_own_requests_only(hub: Hub) -> None:
    """Of a pass that holds tokens of two tenants, each sees its own."""
    ours, theirs = replace(REQUEST, holder="a"), replace(REQUEST, request_id=8, first_id=8, holder="b")
    first = replace(FIRST, requests=(ours, theirs), num_running=2, num_pages_used=2)
    both = (PassTrace("canonical", True, 5, 16, ((7, 3, 2), (8, 3, 3))),)

    async with subscribed(hub, "a") as page, subscribed(hub, "b") as other:
        for one in (page, other):
            await one.read()
        hub.publish(first)
        for one, request_id in ((page, 7), (other, 8)):
            kind, data = await one.read()
            assert (kind, [request["id"] for request in data["requests"]]) == ("snapshot", [request_id])
            assert (data["running"], data["pages_used"]) == (1, 1)
        hub.publish(replace(step(2, theirs), passes=()))  # nothing of a
        hub.publish(replace(step(3, ours, ended=((8, "stop"),)), passes=both))
        _, data = await page.read()
        assert (data["step"], data["ended"]) == (3, [])
        assert [(one["num_tokens"], one["num_tokens_padded"], one["spans"]) for one in data["passes"]] == [
            (2, 2, [[7, 3, 2]])
        ]
        assert [(await other.read())[1]["step"] for _ in range(2)] == [2, 3]
        hub.publish(step(4, ours))
        async with subscribed(hub, "b") as late:
            assert (await late.read())[1]["requests"] == []
        async with subscribed(hub) as admin:
            assert [one["id"] for one in (await admin.read())[1]["requests"]] == [7]


async def test_traces_of_an_earlier_tracer_are_ignored(hub: Hub) -> None:
    """Late traces of an earlier tracer may arrive before the first trace of the new one."""

    async with subscribed(hub) as page:
        await page.read()
        hub.publish(step(90, REQUEST))
        hub.publish(FIRST)
        assert (await page.read())[1]["step"] == 1
    async with subscribed(hub) as page:
        assert (await page.read())[1]["requests"] == []


async def test_new_engine_sends_a_new_snapshot(hub: Hub) -> None:
    async with subscribed(hub) as page:
        await page.read()
        hub.publish(FIRST)
        await page.read()
        hub.engine_restarts("died (signal 9)", 3)
        kind, data = await page.read()
        assert (kind, data) == ("restart", {"restart": "died (signal 9)", "requests": 3})
        kind, data = await page.read()
        assert (kind, data["requests"]) == ("snapshot", [])
        hub.publish(replace(FIRST, requests=()))
        kind, data = await page.read()
        assert (kind, data["requests"], data["num_pages"]) == ("snapshot", [], 10)


async def test_close_ends_streams_and_refuses_new_ones(hub: Hub, tracing: list[bool]) -> None:
    page = Page(hub)
    await page.frame()
    await page.read()
    waiting = asyncio.create_task(anext(page.events, b"the end"))
    await asyncio.sleep(0)
    hub.close()
    assert await waiting == b"the end"
    assert tracing == [True, False]
    with pytest.raises(NotReady):
        hub.require_capacity()


async def test_idle_stream_sends_keep_alives(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "KEEP_ALIVE_SECONDS", 0.01)
    async with subscribed(hub) as page:
        await page.read()
        assert (await page.frame()).startswith(b":")


async def test_page_follows_one_replica_and_another_when_it_is_gone() -> None:
    hub = Hub(str, lambda on: None)
    hub.set_replicas(["a", "b"])
    pages = [hub.events(), hub.events(replica="b"), hub.events(replica="gone")]
    for page in pages:
        await anext(page)
    assert [one.replica for one in hub._subscribers] == ["a", "b", "a"]
    hub.set_replicas(["b"])
    assert {one.replica for one in hub._subscribers} == {"b"}
    for page in pages:
        await page.aclose()
