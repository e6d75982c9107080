"""The lines of a batch that are answered, on disk as they come, in any order.

    a53b91c2d0f4e6a7 {"about": ...}                  the first record: what the batch is
    9c01d2e3f4a5b6c7 {"line": 12, "output": ...}     a record: its digest, and what was written

A process may be killed at any moment. What it wrote last may be there in part: such a record does not have
its digest and its line is computed again. The outputs are written from the journal at the end, in the
order of the input, each to a new file that takes the place of the old one at once.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import ConfigError

_DIGEST_LEN = 16


class Journal:
    """Opens or begins a journal. Raises `ConfigError` if it is another batch's, or in use."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """about: what every run of this batch has in common."""
        self.path = path
        self._offsets: dict[int, int] = {}  # by the line's number
        try:
            self._file: BinaryIO = open(path, "a+b")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"{path} is in use: another process answers this batch") from None
        try:
            self._begin(about)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, number: int) -> bool:
        return number in self._offsets

    def add(self, number: int, record: Mapping[str, Any]) -> None:
        """Write what a line gave. It is safe from the end of this process once this returns."""
        self._offsets[number] = self._write({"line": number, **record})

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what was written, in the order of the lines."""
        for _, offset in sorted(self._offsets.items()):
            self._file.seek(offset)
            yield json.loads(self._file.readline()[_DIGEST_LEN + 1 :])

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()

    def _begin(self, about: Mapping[str, Any]) -> None:
        self._file.seek(0)
        begun = self._load()
        if begun is None:
            self._write({"about": dict(about)})
        elif names := [name for name in about if about[name] != begun.get(name)]:
            raise ConfigError(
                f"{self.path} was begun with another {' and '.join(names)}; delete it to answer all lines anew"
            )

    def _write(self, record: Mapping[str, Any]) -> int:
        text = to_json(record)
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(_digest(text) + b" " + text + b"\n")
        self._file.flush()
        return offset

    def _load(self) -> dict[str, Any] | None:
        """Find the records that are whole. Return what the batch is, None if there is nothing yet."""
        about, offset, line = None, 0, b"\n"
        for line in self._file:
            digest, _, text = line.removesuffix(b"\n").partition(b" ")
            if line.endswith(b"\n") and digest == _digest(text):
                record = json.loads(text)
                if "line" in record:
                    self._offsets[record["line"]] = offset
                else:
                    about = record["about"]
            elif line.endswith(b"\n") and not offset:
                raise ConfigError(f"{self.path} is no journal of a batch; move it away")
            offset += len(line)
        if about is None:
            self._file.truncate(0)  # the first record was written in part
        elif not line.endswith(b"\n"):
            self._file.write(b"\n")  # ends a record that was written in part
        return about


def to_json(content: Any) -> bytes:
    """Return JSON on one line."""
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that takes the place of this one once it is whole and on disk."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LEN].encode("ascii")
