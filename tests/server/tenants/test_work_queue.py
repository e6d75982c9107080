"""Work before admission is bounded, fair and cancelled with its client. No test has an upper bound of time."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.errors import TooBusy
from holdfast.server.tenants.work_queue import WorkQueue

pytestmark = pytest.mark.anyio

PATIENCE = 10.0
LONG = 1.0  # seconds of estimated cost


@pytest.fixture
def queue() -> Iterator[WorkQueue]:
    queue = WorkQueue("test-work", workers=2, max_per_client=1, max_waiting=8)
    yield queue
    queue.close()


class Blocker:
    """Work that runs until it is released or cancelled."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.was_cancelled = False

    def __call__(self, token: CancelToken) -> str:
        self.started.set()
        with token.on_cancel(self.release.set):
            assert self.release.wait(PATIENCE)
        self.was_cancelled = token.is_cancelled
        return "done"

    async def wait_started(self) -> None:
        await asyncio.to_thread(self.started.wait, PATIENCE)


async def test_result_and_error_reach_the_event_loop(queue: WorkQueue) -> None:
    def fail(token: CancelToken) -> None:
        raise ValueError("no")

    assert await queue.run("a", lambda token: 7) == 7
    with pytest.raises(ValueError, match="no"):
        await queue.run("a", fail)


async def test_one_client_cannot_hold_all_workers(queue: WorkQueue) -> None:
    blockers = [Blocker() for _ in range(4)]
    tasks = [asyncio.create_task(queue.run("flood", one, cost=LONG)) for one in blockers]
    await blockers[0].wait_started()
    assert await queue.run("honest", lambda token: "at once", cost=LONG) == "at once"
    assert [one.started.is_set() for one in blockers] == [True, False, False, False]
    while queue.num_running > 1:  # a job's result is there before its worker is free
        await asyncio.sleep(0.001)
    assert queue.num_waiting == 3
    for one in blockers:
        one.release.set()
    assert await asyncio.gather(*tasks) == ["done"] * 4


async def test_short_work_never_waits_for_long_work(queue: WorkQueue) -> None:
    blockers = [Blocker() for _ in range(2)]
    tasks = [
        asyncio.create_task(queue.run(name, one, cost=LONG)) for name, one in zip("ab", blockers, strict=True)
    ]
    for one in blockers:
        await one.wait_started()
    assert await queue.run("a", lambda token: "short", cost=0.001) == "short"
    for one in blockers:
        one.release.set()
    await asyncio.gather(*tasks)


async def test_clients_take_turns() -> None:
    order: list[str] = []

    blocker = Blocker()
    single = WorkQueue("test-turns", workers=1, max_waiting=64)
    first = asyncio.create_task(single.run("flood", blocker, cost=1.0))
    await blocker.wait_started()

    def note(name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(single.run(name, lambda token: order.append(name), cost=1.0))

    tasks = [note(name) for name in ["flood"] * 10 + ["honest"] * 3]
    await asyncio.sleep(0)  # all of them wait now
    blocker.release.set()
    await asyncio.gather(first, *tasks)
    single.close()

    assert order.index("honest") <= 1 and "honest" not in order[7:]


async def test_waiting_work_of_a_client_that_left_never_starts(queue: WorkQueue) -> None:
    running, waiting = Blocker(), Blocker()
    first = asyncio.create_task(queue.run("a", running, cost=LONG))
    await running.wait_started()
    second = asyncio.create_task(queue.run("a", waiting, cost=LONG))
    await asyncio.sleep(0)
    assert queue.num_waiting == 1
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert queue.num_waiting == 0
    running.release.set()
    await first
    assert not waiting.started.is_set()


async def test_running_work_of_a_client_that_left_is_told(queue: WorkQueue) -> None:
    running = Blocker()
    task = asyncio.create_task(queue.run("a", running, cost=LONG))
    await running.wait_started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await queue.run("a", lambda token: "next", cost=LONG) == "next"  # its worker is free again
    assert running.was_cancelled


async def test_newest_work_of_the_longest_queue_is_refused(queue: WorkQueue) -> None:
    held = [Blocker(), Blocker()]
    tasks = [
        asyncio.create_task(queue.run(name, one, cost=LONG)) for name, one in zip("ab", held, strict=True)
    ]
    for one in held:
        await one.wait_started()
    flood = [asyncio.create_task(queue.run("a", lambda token: "late", cost=9.0)) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(TooBusy) as refused:
        await queue.run("a", lambda token: None, cost=LONG)
    assert refused.value.retry_after > 1
    other = asyncio.create_task(
        queue.run("b", lambda token: "other", cost=LONG)
    )  # takes a place of the flood
    with pytest.raises(TooBusy):
        await flood[-1]
    for one in held:
        one.release.set()
    assert await other == "other"
    assert await asyncio.gather(*tasks, *flood[:-1]) == ["done"] * 2 + ["late"] * 7


def test_token_raises_between_slices_once_cancelled() -> None:
    token = CancelToken()
    token.check()
    called: list[int] = []
    with token.on_cancel(lambda: called.append(1)):
        token.cancel()
        token.cancel()
    assert called == [1] and token.is_cancelled
    with pytest.raises(Cancelled):
        token.check()
    with pytest.raises(Cancelled), token.on_cancel(lambda: called.append(2)):
        called.append(3)
    assert called == [1, 2]


async def test_a_worker_rests_after_a_job() -> None:
    queue = WorkQueue("test-rest", workers=1, rest=3.0)
    ended: list[float] = []
    began: list[float] = []

    def work(token: CancelToken) -> None:
        began.append(time.monotonic())
        time.sleep(0.02)
        ended.append(time.monotonic())

    await asyncio.gather(*(queue.run("a", work, cost=LONG) for _ in range(3)))
    queue.close()
    for before, after in itertools.pairwise(range(3)):
        assert began[after] - ended[before] >= 3 * (ended[before] - began[before])
