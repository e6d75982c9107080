"""Holdfast's cache directory, for built kernels, certificates, GEMM recipes and the default model.

Deleting it costs time only. Every file in it but the model ends with a digest of its name and content:

    content
    sha256, 64 hexadecimal digits

So a file that was cut, zeroed, edited or copied from another name is not used. It is made anew, like
one that is missing. The digest finds accidents: who can write the folder can write a digest, too.
"""

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 65  # a newline and 64 digits
_UNFINISHED = ".unfinished"  # the suffix of a file that is being written
_LEFT_AFTER_SECONDS = 3600.0

T = TypeVar("T")


def cache_dir() -> Path:
    chosen = os.environ.get("HOLDFAST_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def read_checked(path: Path) -> bytes | None:
    """Return what `write_checked` wrote. Return None if there is no file or it is not as it was written."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a file")  # reading a pipe would not end
        stored = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _say_damaged(path, str(error.strerror or error))
        return None
    content, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    if digest == _digest(path, content):
        return content
    _say_damaged(path, "it is not as it was written")
    return None


def read_json(path: Path, form: type[T]) -> T | None:
    """Return the object that a file of `write_checked` holds as JSON, if it can be used."""
    import msgspec  # here: setup.py builds the kernels before anything is installed

    content = read_checked(path)
    try:
        return None if content is None else msgspec.json.decode(content, type=form)
    except (ValueError, RecursionError):
        return None


def write_checked(path: Path, content: bytes) -> None:
    """Write a file for `read_checked`, by renaming a complete one that is on the disk. Create its folder.

    Raises OSError and then leaves no file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_UNFINISHED, delete=False) as file:
        try:
            file.write(content + _digest(path, content))
            file.flush()
            os.fsync(file.fileno())
            if path.is_dir():
                remove(path)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)  # for example if the disk is full
            raise
    _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file, or whatever is in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for other processes that hold the lock of this folder. Create the folder. If it cannot be locked,
    two may be inside at once.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _digest(path: Path, content: bytes) -> bytes:
    """Return the end of a file. It holds the name, so that no file passes for another one."""
    return f"\n{hashlib.sha256(f'{path.name} '.encode() + content).hexdigest()}".encode()


@cache  # one line for a file
def _say_damaged(path: Path, reason: str) -> None:
    _log.warning("%s cannot be used and is made anew: %s", path, reason)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    with suppress(OSError):
        for left in folder.glob(f"*{_UNFINISHED}"):
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_SECONDS:
                left.unlink()


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk, too. Some file systems cannot."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
