"""Messages on a byte stream: split anywhere, truncated, invalid."""

import asyncio
import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.framing import ConnectionLost, FrameTooLong
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


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def read_all(data: bytes) -> list[m.ToEngine]:
    """What the engine's side reads from a stream that ends after the data."""
    ours, theirs = socket.socketpair()
    decoder, read = m.decoder_to_engine(), []
    with ours, theirs:
        writing = threading.Thread(target=lambda: (theirs.sendall(data), theirs.shutdown(socket.SHUT_WR)))
        writing.start()
        with suppress(ConnectionLost):
            while True:
                read.append(decoder.read(ours))
        writing.join()
    return read


async def read_all_async(parts: list[bytes]) -> list[m.ToEngine]:
    """The same with asyncio, as the frontend reads."""
    reader, decoder, read = asyncio.StreamReader(), m.decoder_to_engine(), []
    for part in parts:
        reader.feed_data(part)
    reader.feed_eof()
    try:
        while True:
            read.append(await decoder.read_async(reader))
    except ConnectionLost:
        return read


def test_messages_round_trip() -> None:
    assert read_all(m.encode(MESSAGES)) == MESSAGES


@given(st.lists(st.integers(0, 200), max_size=8))
def test_stream_may_be_split_anywhere(cuts: list[int]) -> None:
    data = m.encode(MESSAGES)
    at = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    parts = [data[start:end] for start, end in pairwise(at)]
    assert asyncio.run(read_all_async(parts)) == MESSAGES


def test_large_message_round_trips() -> None:
    large = m.Submit(Request(1, tuple(range(200_000)), SamplingParams(), 0))
    assert read_all(m.encode([large])) == [large]


@pytest.mark.parametrize("length", [1, 3, 4, 7])
def test_truncated_message_is_a_lost_connection(length: int) -> None:
    assert read_all(m.encode(MESSAGES[:1])[:length]) == []
    assert asyncio.run(read_all_async([m.encode(MESSAGES[:1])[:length]])) == []


def test_excessive_length_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    """It does not wait for four gigabytes."""
    ours, theirs = pair
    theirs.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(FrameTooLong):
        m.decoder_to_engine().read(ours)


@pytest.mark.parametrize(
    "content", [b"\xc1", b"", b"\x90", b"\x91\xa4Nope", b"\x92\xa5Abort\xa1x", b"\x81\xa1a\x01", b"\x05" * 9]
)
def test_invalid_message_is_an_error(pair: tuple[socket.socket, socket.socket], content: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(len(content).to_bytes(4, "little") + content)
    with pytest.raises(msgspec.DecodeError):
        m.decoder_to_engine().read(ours)


def test_closed_socket_is_a_lost_connection() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    with pytest.raises(ConnectionLost):
        m.decoder_to_engine().read(ours)


def test_step_output_arrives_unchanged(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    thoughts = (Thought(0, 3, "", ()), Thought(1, 7, "tails", (9, 8)))
    delta = Delta("a", (5,), (TokenLogprob(5, -0.5, ((7, -1.0),)),), 1, "stop", thoughts)
    result = Result((), (), 3, "none", Stats(windows=2), {"format": "x"}, "failed", (None,), "pass_failed")
    sent = m.StepOutput((m.Started(1, 0.5),), (RequestOutput(1, delta, result), RequestOutput(2, Delta())))
    theirs.sendall(m.encode([sent]))
    assert m.decoder_from_engine().read(ours) == sent
