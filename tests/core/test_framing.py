"""Length-prefixed frames: whole payloads in order, bounded lengths, deadlines, and the end of the stream."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from holdfast.core.framing import ConnectionLost, FrameTooLong, pack_frame, read_frame, read_frame_async


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_frames_are_read_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.sendall(pack_frame(b"one") + pack_frame(b"") + pack_frame(b"three"))
    assert [read_frame(right) for _ in range(3)] == [b"one", b"", b"three"]


def test_length_above_the_bound_is_refused_before_the_payload(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    left.sendall((11).to_bytes(4, "little"))
    with pytest.raises(FrameTooLong, match="11 bytes; at most 10"):
        read_frame(right, 10)


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", pack_frame(b"hello")[:-1]])
def test_end_of_stream_is_connection_lost(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    left.close()
    with pytest.raises(ConnectionLost):
        read_frame(right)


@pytest.mark.parametrize("sent", [b"", pack_frame(b"hello")[:-1]])
def test_deadline_bounds_the_whole_frame(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    with pytest.raises(TimeoutError):
        read_frame(right, deadline=time.monotonic() + 0.05)


def test_asyncio_stream_gives_the_same_payloads() -> None:
    async def read(sent: bytes) -> list[bytes]:
        stream = asyncio.StreamReader()
        stream.feed_data(sent)
        stream.feed_eof()
        found = [await read_frame_async(stream, 100)]
        with pytest.raises(ConnectionLost):
            await read_frame_async(stream, 100)
        return found

    assert asyncio.run(read(pack_frame(b"payload") + b"\x01")) == [b"payload"]
    with pytest.raises(FrameTooLong):
        asyncio.run(read(pack_frame(b"x" * 101)))
