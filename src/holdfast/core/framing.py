"""Messages on a stream of bytes: a 4-byte little-endian length, then the payload.

    +----------------+------------------+----------------+-----
    | length (u32le) | payload, length  | length (u32le) | ...
    +----------------+------------------+----------------+-----

What a payload contains is the caller's business. The bound on the length is checked before the
payload is read: a reader that lost its position in the stream, or whose peer is hostile, gets an
error instead of an allocation.
"""

import socket
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")


class ConnectionLost(Exception):
    """The other process closed the stream, or died."""


class FrameTooLong(Exception):
    """The length is above the bound. The stream cannot be read any further."""


def pack_frame(payload: bytes) -> bytes:
    """Return the payload with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


def read_frame(
    source: socket.socket, max_bytes: int = MAX_FRAME_BYTES, *, deadline: float | None = None
) -> bytes:
    """Return the next payload. Block until `deadline` (of `time.monotonic`), then raise `TimeoutError`;
    raises `ConnectionLost` at the end of the stream."""
    (length,) = _LENGTH.unpack(_read_exactly(source, _LENGTH.size, deadline))
    return _read_exactly(source, _checked(length, max_bytes), deadline)


async def read_frame_async(source: "StreamReader", max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the next payload of an asyncio stream. Raise `ConnectionLost` at its end."""
    try:
        (length,) = _LENGTH.unpack(await source.readexactly(_LENGTH.size))
        return await source.readexactly(_checked(length, max_bytes))
    except (EOFError, OSError) as error:
        raise ConnectionLost from error


def _checked(length: int, max_bytes: int) -> int:
    if length > max_bytes:
        raise FrameTooLong(f"a frame of {length} bytes; at most {max_bytes} are allowed")
    return length


def _read_exactly(source: socket.socket, count: int, deadline: float | None) -> bytes:
    chunks: list[bytes] = []
    while count:
        try:
            if deadline is not None:
                source.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = source.recv(min(count, 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost from error
        if not chunk:
            raise ConnectionLost
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
