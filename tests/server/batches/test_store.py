"""What is kept of files and batches: bounds, expiry, what a server that was killed left."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.server.batches.objects import Batch, RequestCounts, StoredBatch
from holdfast.server.batches.store import FILE_SECONDS, Store
from holdfast.server.errors import ApiError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    store = Store(tmp_path, 1 << 20, clock)
    yield store
    store.close()


def batch_of(store: Store, input_file_id: str) -> StoredBatch:
    content = Batch(
        id="batch_1",
        endpoint="/v1/completions",
        input_file_id=input_file_id,
        completion_window="24h",
        status="in_progress",
        created_at=store.now,
        expires_at=store.now + 86400,
        request_counts=RequestCounts(1, 0, 0),
    )
    stored = StoredBatch("a", content)
    store.add_batch(stored)
    return stored


def test_disk_is_bounded_for_one_owner_and_for_all(opened: Store) -> None:
    store = opened
    store.add_file(io.BytesIO(b"x" * 400_000), "a", "f", "batch")
    with pytest.raises(ApiError, match="no room"):
        store.require_room(200_000, "a")
    store.require_room(200_000, "b")
    store.add_file(io.BytesIO(b"x" * 400_000), "b", "f", "batch")
    assert store.has_room(100_000) and not store.has_room(300_000)
    with pytest.raises(ApiError, match="no room"):
        store.require_room(300_000, "c")
    batch_of(store, "none")
    store.journal_of("batch_1").write_bytes(b"x" * 100_000)
    assert not store.has_room(100_000), "a journal counts too"


def test_files_expire_but_not_the_input_of_a_batch_that_runs(
    opened: Store, tmp_path: Path, clock: Clock
) -> None:
    store = opened
    kept = store.add_file(io.BytesIO(b"kept"), "a", "f", "batch")
    other = store.add_file(io.BytesIO(b"other"), "a", "f", "batch", lifetime=3600)
    stored = batch_of(store, kept.id)
    clock.now += 3601
    assert [one.id for one in store.files("a")] == [kept.id]
    assert not store.path_of(other.id).exists()
    clock.now += FILE_SECONDS
    assert [one.id for one in store.files("a")] == [kept.id]
    stored.set_status("completed", store.now)
    assert store.files("a") == [] and stored.content.completed_at == store.now
    clock.now += 2 * FILE_SECONDS
    store.remove_expired()
    assert not store.batches and not list(tmp_path.glob("*/*.json"))


def test_next_server_finds_all_and_removes_what_was_written_in_part(tmp_path: Path) -> None:
    store = Store(tmp_path, 1 << 20)
    file = store.add_file(io.BytesIO(b"text"), "a", "f", "batch")
    stored = batch_of(store, file.id)
    with pytest.raises(ConfigError, match="in use"):
        Store(tmp_path, 1 << 20)
    store.path_of("file-half.new").write_bytes(b"half")
    store.journal_of("batch_1").write_bytes(b"mine")
    store.journal_of("batch_2").write_bytes(b"of no batch")
    store.close()
    found = Store(tmp_path, 1 << 20)
    found.close()
    assert found.file(file.id, "a") == file and found.batch("batch_1", "a") == stored
    assert sorted(path.name for path in tmp_path.glob("*/*") if path.suffix != ".json") == sorted(
        [file.id, "batch_1.partial"]
    )
