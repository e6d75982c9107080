"""HTTP bodies that arrive in pieces, cut anywhere: chunked transfer coding, and the events of a stream.

Each decoder is fed what came and gives what is complete by now. They do no input or output of their own.
"""

from typing import Protocol

from holdfast.errors import ServerError

_LONGEST_LINE = 1 << 16


class BodyError(ServerError):
    """What came is not what HTTP allows."""


class Decoder(Protocol):
    """Takes a body out of a connection's bytes; `done` once the whole body was seen.

    may_end says that the connection's end is the body's.
    """

    done: bool
    may_end: bool

    def feed(self, data: bytes) -> bytes: ...


class Chunked:
    """Chunked transfer coding. What is not understood raises; extensions and trailers are skipped."""

    def __init__(self) -> None:
        self.done = self.may_end = False
        self._buffer = b""
        self._left = 0  # bytes of the open chunk, with the line end behind it
        self._trailers = False

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        pieces: list[bytes] = []
        while not self.done and self._step(pieces):
            pass
        return b"".join(pieces)

    def _step(self, pieces: list[bytes]) -> bool:
        """Take one chunk, or one line between chunks; false if more has to come first."""
        if self._left:
            return self._take(pieces)
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(self._buffer) > _LONGEST_LINE:
                raise BodyError("a chunk's length has no end")
            return False
        self._buffer = rest
        if self._trailers:
            self.done = not line
            return True
        size = _chunk_len(line)
        self._trailers = size == 0
        self._left = size + 2 if size else 0
        return True

    def _take(self, pieces: list[bytes]) -> bool:
        if len(self._buffer) < self._left:
            ready = min(len(self._buffer), self._left - 2)
            pieces.append(self._buffer[:ready])
            self._buffer = self._buffer[ready:]
            self._left -= ready
            return False
        pieces.append(self._buffer[: self._left - 2])
        if self._buffer[self._left - 2 : self._left] != b"\r\n":
            raise BodyError("a chunk is longer than it says")
        self._buffer = self._buffer[self._left :]
        self._left = 0
        return True


def _chunk_len(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    try:
        if not digits.isalnum():  # int() would take a sign or an underscore
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise BodyError(f"{line[:40]!r} is no chunk length") from None


class Counted:
    """A body of a length that is known, or without one: then it ends with the connection."""

    def __init__(self, length: int | None) -> None:
        self._left = length
        self.done = length == 0
        self.may_end = length is None

    def feed(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.done = self._left == 0
        return data


class Events:
    """Server-sent events: the data of each that is complete. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events
