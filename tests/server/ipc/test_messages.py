"""Messages arrive as they were sent, or are refused. Frames are tested in core/test_framing.py."""

import asyncio
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.framing import ConnectionLost, pack_frame, read_frame_async
from holdfast.core.pooling import Pooling
from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams, score_params
from holdfast.core.sent import Sent
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.structured_output import StructuredOutput
from holdfast.server.ipc import messages as m

SENT = Sent(
    array("i", (5, 6)), array("f", (-0.5, 1.5)), 3, [(7, 8), ()], [TokenLogprob(5, -0.5)], "stop", "x"
)
EVERY_SETTING = SamplingParams(
    max_tokens=8,
    seed=(1 << 64) - 1,
    stop=["a", "b"],
    stop_token_ids=[1],
    logit_bias={3: 1.5},
    allowed_token_ids=[1, 2],
    bad_token_ids=[4],
    bad_words="no",
    forced_thoughts={2: [5, 6]},
    structured=StructuredOutput(choice=["a", "b"]),
    deterministic=True,
    n=2,
)
MESSAGES: list[m.ToEngine] = [
    m.Submit(Request(1, (1, 2, 3), SamplingParams(temperature=0.5), 0, echo_text="text")),
    m.Submit(Request(2, (1, 2), score_params(deterministic=True), 1, read_len=1)),
    m.Submit(Request(3, (1,), EVERY_SETTING, (1 << 64) - 1, pooling=Pooling("mean"), sent=(SENT, SENT))),
    m.Abort(1),
    m.SetTracing(on=True),
    m.GetStatus(),
    m.Stop(),
]


async def read_all(decode: Callable[[bytes], Any], *parts: bytes) -> list[Any]:
    """What is read from a stream of these parts."""
    reader, read = asyncio.StreamReader(), []
    for part in parts:
        reader.feed_data(part)
    reader.feed_eof()
    try:
        while True:
            read.append(decode(await read_frame_async(reader)))
    except ConnectionLost:
        return read


@given(st.lists(st.integers(0, 200), max_size=8))
def test_messages_round_trip_wherever_the_stream_is_split(cuts: list[int]) -> None:
    data = m.encode(MESSAGES)
    at = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    parts = [data[start:end] for start, end in pairwise(at)]
    assert asyncio.run(read_all(m.decode_to_engine, *parts)) == MESSAGES


@pytest.mark.parametrize(
    "content", [b"\xc1", b"", b"\x90", b"\x91\xa4Nope", b"\x92\xa5Abort\xa1x", b"\x81\xa1a\x01", b"\x05" * 9]
)
def test_invalid_message_is_an_error(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        asyncio.run(read_all(m.decode_to_engine, pack_frame(content)))


def test_step_output_arrives_unchanged() -> None:
    thoughts = (Thought(0, 3, "", ()), Thought(1, 7, "tails", (9, 8)))
    delta = Delta("a", (5,), (TokenLogprob(5, -0.5, ((7, -1.0),)),), 1, "stop", thoughts)
    result = Result((), (), 3, "none", Stats(windows=2), {"format": "x"}, "failed", (None,), "pass_failed")
    sent = m.StepOutput((m.Started(1, 0.5),), (RequestOutput(1, delta, result), RequestOutput(2, Delta())))
    assert asyncio.run(read_all(m.decode_from_engine, m.encode([sent]))) == [sent]
