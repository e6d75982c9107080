"""Files and batches on disk. One server uses a folder at a time; the next one finds all of it.

    FOLDER/lock                  held while a server uses the folder
    FOLDER/files/ID, ID.json     a file, and what it is
    FOLDER/batches/ID.json       a batch; ID.partial is the journal of its answers

All that is here is bounded together, and a tenant may take half of it. A tenant sees what it owns and nothing
else: any other id does not exist for it.
"""

import contextlib
import fcntl
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from holdfast.batches.journal import replacing
from holdfast.errors import ConfigError
from holdfast.server.batches.objects import FileObject, Purpose, StoredBatch, StoredFile
from holdfast.server.errors import ApiError

FILE_SECONDS = 30 * 86400  # that a file is kept
_ENTRY_BYTES = 16 << 10  # what a file or a batch counts as, beside its bytes
_ID_BYTES = 16

T = TypeVar("T", StoredFile, StoredBatch)


class Store:
    """Raises `ConfigError` if the folder cannot be used."""

    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._files_dir, self._batches_dir = folder / "files", folder / "batches"
        try:
            for one in (self._files_dir, self._batches_dir):
                one.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(folder / "lock", "w")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"the folder of files {folder} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"the folder of files {folder} is in use by another server") from None
        self._files = {one.content.id: one for one in _load(self._files_dir, StoredFile)}
        self.batches = {one.content.id: one for one in _load(self._batches_dir, StoredBatch)}
        self._remove_strays()

    @property
    def now(self) -> int:
        return int(self._clock())

    def close(self) -> None:
        self._lock.close()

    # Files

    def require_room(self, num_bytes: int, owner: str) -> None:
        """Refuse bytes that do not fit, of this owner or of all."""
        self.remove_expired()
        used = self._used()
        if (
            used.get(owner, 0) + num_bytes > self._max_bytes // 2
            or sum(used.values()) + num_bytes > self._max_bytes
        ):
            message = "there is no room for the file; delete files that are no longer needed"
            raise ApiError(413, message, code="storage_full")

    def has_room(self, num_bytes: int) -> bool:
        """Return whether the answers of a batch fit."""
        return sum(self._used().values()) + num_bytes <= self._max_bytes

    def add_file(
        self,
        source: BinaryIO,
        owner: str,
        filename: str,
        purpose: Purpose,
        *,
        lifetime: int = FILE_SECONDS,
        id_: str | None = None,
    ) -> FileObject:
        """Copy a file. With an id it takes the place of the file that has it."""
        id_ = id_ or f"file-{secrets.token_hex(_ID_BYTES)}"
        with replacing(self._files_dir / id_) as file:
            shutil.copyfileobj(source, file, 1 << 20)
            size = file.tell()
        content = FileObject(id_, size, self.now, self.now + lifetime, filename, purpose, "processed")
        self._files[id_] = StoredFile(owner, content)
        _save(self._files_dir, self._files[id_])
        return content

    def file(self, id_: str, owner: str) -> FileObject:
        self.remove_expired()
        return _find(self._files, id_, owner, "file").content

    def files(self, owner: str) -> list[FileObject]:
        """Return the files of an owner, the newest first."""
        self.remove_expired()
        return _newest_first([one.content for one in tuple(self._files.values()) if one.owner == owner])

    def path_of(self, id_: str) -> Path:
        return self._files_dir / id_

    def delete_file(self, id_: str, owner: str) -> None:
        """Refuse to delete the input of a batch that has not ended."""
        _find(self._files, id_, owner, "file")
        if id_ in self._inputs():
            raise ApiError(409, f"the file {id_} is used by a batch; cancel it first", code="file_in_use")
        self._drop_file(id_)

    def remove_expired(self) -> None:
        """Delete files that have expired, and batches of which no file is left."""
        used = self._inputs()
        for id_ in [id_ for id_, one in tuple(self._files.items()) if one.content.expires_at <= self.now]:
            if id_ not in used:
                self._drop_file(id_)
        old = self.now - FILE_SECONDS
        for id_ in [
            id_ for id_, one in tuple(self.batches.items()) if one.is_ended and one.content.expires_at < old
        ]:
            del self.batches[id_]
            (self._batches_dir / f"{id_}.json").unlink(missing_ok=True)

    # Batches

    def add_batch(self, stored: StoredBatch) -> None:
        self.batches[stored.content.id] = stored
        self.save_batch(stored)

    def save_batch(self, stored: StoredBatch) -> None:
        _save(self._batches_dir, stored)

    def batch(self, id_: str, owner: str) -> StoredBatch:
        return _find(self.batches, id_, owner, "batch")

    def batches_of(self, owner: str) -> list[StoredBatch]:
        found = [one for one in tuple(self.batches.values()) if one.owner == owner]
        return sorted(found, key=lambda one: (-one.content.created_at, one.content.id))

    def journal_of(self, id_: str) -> Path:
        return self._batches_dir / f"{id_}.partial"

    def _inputs(self) -> set[str]:
        return {one.content.input_file_id for one in tuple(self.batches.values()) if not one.is_ended}

    def _used(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for one in tuple(self._files.values()):
            used[one.owner] = used.get(one.owner, 0) + one.content.bytes + _ENTRY_BYTES
        for stored in tuple(self.batches.values()):
            used[stored.owner] = used.get(stored.owner, 0) + _ENTRY_BYTES
            if not stored.is_ended:
                used[stored.owner] += _size(self.journal_of(stored.content.id))
        return used

    def _drop_file(self, id_: str) -> None:
        del self._files[id_]
        (self._files_dir / f"{id_}.json").unlink(missing_ok=True)
        (self._files_dir / id_).unlink(missing_ok=True)

    def _remove_strays(self) -> None:
        """Remove what a server that was killed left: files without a description, journals that are done with."""
        for path in self._files_dir.iterdir():
            if path.suffix != ".json" and path.name not in self._files:
                path.unlink()
        for path in self._batches_dir.glob("*.partial"):
            if path.stem not in self.batches or self.batches[path.stem].is_ended:
                path.unlink()


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(_ID_BYTES)}"


def _load(folder: Path, kind: type[T]) -> Iterator[T]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(
            msgspec.MsgspecError
        ):  # of another version, or damaged: as if it were not there
            yield msgspec.json.decode(path.read_bytes(), type=kind)


def _save(folder: Path, stored: StoredFile | StoredBatch) -> None:
    with replacing(folder / f"{stored.content.id}.json") as file:
        file.write(msgspec.json.encode(stored))


def _find(known: dict[str, T], id_: str, owner: str, what: str) -> T:
    found = known.get(id_)
    if found is None or found.owner != owner:
        shown = id_ if id_.isprintable() and len(id_) <= 80 else f"{id_[:80]!r}..."
        raise ApiError(404, f"There is no {what} `{shown}`.", code=f"{what}_not_found")
    return found


def _newest_first(files: Sequence[FileObject]) -> list[FileObject]:
    return sorted(files, key=lambda one: (-one.created_at, one.id))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
