"""Work for a client that disconnects is cancelled at once and completely."""

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from holdfast.server.http.disconnect import run_until_disconnect
from support.asgi import scope_of


class Client:
    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    def request(self) -> Request:
        return Request(scope_of("POST", "/"), self.receive)


def run(scene: Any) -> Any:
    async def watched() -> Any:
        result = await scene
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
        return result

    return asyncio.run(watched())


def test_result_is_returned() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async def scene() -> int:
        client = Client()
        return await run_until_disconnect(client.request(), work()) + await run_until_disconnect(
            client.request(), work()
        )

    assert run(scene()) == 14


@pytest.mark.parametrize("how", ["the client leaves", "the client leaves, and it ends slowly", "cancelled"])
def test_work_is_cancelled_and_its_cleanup_awaited(how: str) -> None:
    async def scene() -> list[str]:
        noted: list[str] = []
        client, started = Client(), asyncio.Event()

        async def work() -> None:
            try:
                started.set()
                await asyncio.get_running_loop().create_future()
            finally:
                if "slowly" in how:
                    await asyncio.sleep(0.01)
                noted.append("cleaned up")

        task = asyncio.create_task(run_until_disconnect(client.request(), work()))
        await started.wait()
        if how == "cancelled":
            task.cancel()
        else:
            client.left.set()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else ClientDisconnect):
            await task
        return noted

    assert run(scene()) == ["cleaned up"]
