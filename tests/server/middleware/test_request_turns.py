"""Requests start in turns between tenants, a few in each pass of the event loop."""

import asyncio

from holdfast.server.middleware.request_turns import RequestTurns

NUM_FLOOD = 50


def test_one_request_of_another_tenant_overtakes_a_flood() -> None:
    async def main() -> list[str]:
        turns, started = RequestTurns(), []

        async def start(client: str) -> None:
            await turns.wait(client)
            started.append(client)

        flood = [asyncio.create_task(start("flood")) for _ in range(NUM_FLOOD)]
        await asyncio.sleep(0)
        honest = asyncio.create_task(start("honest"))
        await asyncio.gather(*flood, honest)
        assert not turns
        return started

    order = asyncio.run(main())
    assert len(order) == NUM_FLOOD + 1
    assert order.index("honest") < 10


def test_no_request_waits_when_few_start() -> None:
    async def main() -> None:
        turns = RequestTurns()
        for _ in range(3):
            waiting = turns.wait("a")
            try:
                waiting.send(None)  # a coroutine that does not suspend ends at once
            except StopIteration:
                pass
            else:
                raise AssertionError("it waited")
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(main())


def test_cancelled_request_gives_its_turn_up() -> None:
    async def main() -> None:
        turns = RequestTurns()
        tasks = [asyncio.create_task(turns.wait("a")) for _ in range(6)]
        await asyncio.sleep(0)
        assert len(turns)
        tasks[-1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in results if one is not None] == [results[-1]]
        assert isinstance(results[-1], asyncio.CancelledError) and not turns

    asyncio.run(main())
