"""Messages on a stream of bytes: four bytes of length, then the message.

The two ends trust each other, so the bound on a frame's length only turns a lost position in the stream into an error.
"""

import socket
import struct
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.server.ipc.messages import FromEngine, ToEngine

_MAX_FRAME = 1 << 30
_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


class ConnectionLost(Exception):
    """The other process is gone."""


class OutOfStep(Exception):
    """What came is no frame: from here on nothing can be understood."""


class Decoder(Generic[T]):
    """Reads messages of one direction, from a socket or an asyncio stream."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder

    def read(self, source: socket.socket) -> T:
        """The next message. Blocks; raises `ConnectionLost` at the end."""
        size = _checked(_LENGTH.unpack(_read_exactly(source, _LENGTH.size))[0])
        return self._decoder.decode(_read_exactly(source, size))

    async def read_from(self, source: StreamReader) -> T:
        """The next message. Raises `ConnectionLost` at the end."""
        try:
            size = _checked(_LENGTH.unpack(await source.readexactly(_LENGTH.size))[0])
            return self._decoder.decode(await source.readexactly(size))
        except (IncompleteReadError, OSError) as error:
            raise ConnectionLost from error


def to_engine() -> Decoder[ToEngine]:
    return Decoder(msgspec.msgpack.Decoder(ToEngine))


def from_engine() -> Decoder[FromEngine]:
    return Decoder(msgspec.msgpack.Decoder(FromEngine))


def encode(messages: Sequence[Any]) -> bytes:
    """Frames for these messages, one behind the other."""
    parts = []
    for message in messages:
        content = _encoder.encode(message)
        parts += [_LENGTH.pack(len(content)), content]
    return b"".join(parts)


def _checked(size: int) -> int:
    if size > _MAX_FRAME:
        raise OutOfStep(f"a frame of {size} bytes")
    return size


def _read_exactly(source: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = source.recv(min(size, 1 << 20))
        except OSError as error:
            raise ConnectionLost from error
        if not part:
            raise ConnectionLost
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
