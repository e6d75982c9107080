"""AsyncLLM: deltas, results, cancellation, closing."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import LLM, AsyncLLM, Delta, SamplingParams
from holdfast.engine.llm.engine_thread import EngineThread
from holdfast.errors import EngineStopped, InvalidRequest, PromptTooLong

pytestmark = pytest.mark.anyio

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, deterministic=True, logprobs=2)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(auto_llm: LLM) -> Iterator[AsyncLLM]:
    """On the engine that the tests of `LLM` share."""
    one = AsyncLLM.__new__(AsyncLLM)
    one.config, one._tokenizer = auto_llm.config, auto_llm.get_tokenizer()
    one._thread = EngineThread(lambda: auto_llm.engine.restarted(auto_llm.engine.scheduler.config))
    yield one
    one.close()


async def idle(llm: AsyncLLM) -> bool:
    """Whether the engine has nothing to do any more, within some seconds."""
    for _ in range(500):
        if not llm._engine.has_work:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_deltas_join_to_the_awaited_result(llm: AsyncLLM) -> None:
    deltas = [delta async for delta in llm.generate("the fox", sampling_params=PARAMS)]
    result = await llm.generate({"prompt": "the fox"}, PARAMS)
    assert "".join(delta.text for delta in deltas) == result.text == result.outputs[0].text
    assert tuple(one for delta in deltas for one in delta.logprobs or ()) == result.logprobs
    assert result.prompt == "the fox" and deltas[-1].finish_reason == "length"
    assert result.outputs[0].logprobs is not None
    assert result.outputs[0].logprobs[0][result.token_ids[0]].decoded_token


async def test_chat_is_awaited_or_iterated(llm: AsyncLLM) -> None:
    result = await llm.chat(HELLO, PARAMS)
    assert result.text == "".join([one.text async for one in llm.chat(HELLO, PARAMS)])
    assert result.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


async def test_wrong_request_raises(llm: AsyncLLM) -> None:
    with pytest.raises(PromptTooLong):
        await llm.generate([5] * 600, PARAMS)
    with pytest.raises(PromptTooLong):
        async for _ in llm.generate([5] * 600, PARAMS):
            pass
    with pytest.raises(InvalidRequest):
        llm.generate("a", [PARAMS, PARAMS])  # type: ignore[arg-type]
    assert await idle(llm)


async def test_cancelled_task_ends_its_request_and_no_other(llm: AsyncLLM) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in llm.generate("the dog", LONG):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    other = asyncio.create_task(llm.generate("the fox", PARAMS)._wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await other).token_ids) == 8
    assert await idle(llm)


async def test_leaving_the_loop_and_closing_end_a_request(llm: AsyncLLM) -> None:
    async def first() -> Delta:
        async for delta in llm.generate("the dog", LONG):
            return delta
        raise AssertionError

    await first()
    gc.collect()
    assert await idle(llm)
    stream = llm.generate("the dog", LONG)
    await anext(stream)
    await stream.aclose()
    assert await idle(llm)
    with pytest.raises(asyncio.InvalidStateError, match="closed before its answer ended"):
        await stream


async def test_closing_ends_all_and_loading_works(tiny_llama: Path) -> None:
    async with AsyncLLM(str(tiny_llama), dtype="fp32", max_pass_tokens=64, max_num_seqs=4) as llm:
        stream = llm.generate("the dog", LONG)
        await anext(stream)
        assert llm.get_tokenizer().vocab_size > 0
    with pytest.raises(EngineStopped):
        await stream
    with pytest.raises(EngineStopped, match="this AsyncLLM is closed"):
        await llm.generate("the dog", PARAMS)
