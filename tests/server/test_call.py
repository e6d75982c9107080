"""A call whose engine dies, refuses a prompt or takes too long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from holdfast.core.request import NO_DEFAULTS
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import EngineStopped, PromptTooLong
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.ipc.engine_process import ProcessPort
from holdfast.server.prompts import PromptReader
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenants.admission import TokenMeter
from holdfast.server.tenants.tenant import UNKNOWN_TENANT
from support.engine_ports import PATIENCE, connected
from support.fake_engine import Prompt

pytestmark = pytest.mark.anyio

PARAMS = SamplingParams()


@asynccontextmanager
async def calling(start: str = "ready", timeout: float = PATIENCE) -> AsyncIterator[tuple[Call, ProcessPort]]:
    async with connected(start) as port:
        call = Call(
            "id",
            "chat",
            port.requests,
            NO_DEFAULTS,
            deterministic=False,
            stream=False,
            tenant=UNKNOWN_TENANT,
            meter=TokenMeter(),
            prompts=cast(PromptReader, None),
            metrics=Metrics().request(False),
            timeout=timeout,
        )
        try:
            yield call, port
        finally:
            call.close()
            assert port.requests.num_live == 0


async def text_of(call: Call) -> str:
    await call.accepted()
    return "".join([delta.text async for batch in call.batches() for _, delta in batch])


async def test_complete_answer_survives_its_engine() -> None:
    async with calling() as (call, port):
        await call.submit([Prompt.ANSWER], PARAMS)
        await call.accepted()
        while not call.results:
            await asyncio.sleep(0.01)
        port.kill()
        await port.wait_ended()
        assert await text_of(call) == "yes" and await call.fingerprint() == "abc"


@pytest.mark.parametrize("moment", ["before", "while", "before_fingerprint"])
async def test_dead_engine_is_a_503(moment: str) -> None:
    async with calling("no_fingerprint") as (call, port):
        if moment == "before":
            port.kill()
            await port.wait_ended()
            with pytest.raises(EngineStopped) as raised:
                await call.submit([Prompt.ANSWER], PARAMS)
        elif moment == "while":
            await call.submit([Prompt.STREAM], PARAMS)
            await call.accepted()
            port.kill()
            with pytest.raises(EngineStopped) as raised:
                await text_of(call)
        else:
            waiting = asyncio.create_task(call.fingerprint())
            await asyncio.sleep(0)
            port.kill()
            with pytest.raises(EngineStopped) as raised:
                await waiting
        told = to_api_error(raised.value)
        assert (told.status, told.code) == (503, "engine_stopped") and "Retry-After" in told.headers


async def test_one_refused_prompt_fails_the_call() -> None:
    async with calling() as (call, _):
        await call.submit([Prompt.STREAM], PARAMS)
        await call.submit([Prompt.REFUSE], PARAMS)
        with pytest.raises(PromptTooLong):
            await call.accepted()


@pytest.mark.parametrize("is_submitted", [True, False])
async def test_timeout_ends_the_call(is_submitted: bool) -> None:
    """Also before the prompt is submitted: rendering it may take long."""

    async with calling(timeout=0.05) as (call, port):
        if is_submitted:
            await call.submit([Prompt.SILENCE], PARAMS)
            with pytest.raises(ApiError) as raised:
                await call.accepted()
        else:
            await asyncio.sleep(0.1)
            with pytest.raises(ApiError) as raised:
                await call.submit([Prompt.ANSWER], PARAMS)
        assert (raised.value.status, raised.value.code) == (504, "timeout")
        assert port.requests.num_live == 0


async def test_all_deltas_that_are_there_are_one_batch() -> None:
    async with calling() as (call, _):
        for _ in range(2):
            await call.submit([Prompt.ANSWER], PARAMS)
        while len(call.results) < 2:
            await asyncio.sleep(0.01)
        (batch,) = [one async for one in call.batches()]
        assert [delta.text for at, delta in batch if at == 1] == [
            delta.text for at, delta in batch if at == 0
        ]
