"""Encodes and decodes the messages of the engine connection: msgpack in the length-prefixed frames
of `core.framing`.
"""

import socket
from asyncio import StreamReader
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.framing import pack_frame, read_frame, read_frame_async
from holdfast.server.ipc.messages import FromEngine, ToEngine

_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


class Decoder(Generic[T]):
    """Reads the messages of one direction, from a socket or an asyncio stream.

    Raises `ConnectionLost` at the end.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder

    def read(self, source: socket.socket) -> T:
        """Wait for the next message."""
        return self._decoder.decode(read_frame(source))

    async def read_async(self, source: StreamReader) -> T:
        """Wait for the next message."""
        return self._decoder.decode(await read_frame_async(source))


def to_engine() -> Decoder[ToEngine]:
    return Decoder(msgspec.msgpack.Decoder(ToEngine))


def from_engine() -> Decoder[FromEngine]:
    return Decoder(msgspec.msgpack.Decoder(FromEngine))


def encode(messages: Sequence[Any]) -> bytes:
    """The frames of these messages, one after the other."""
    return b"".join([pack_frame(_encoder.encode(message)) for message in messages])
