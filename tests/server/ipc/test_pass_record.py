"""The memory that says which requests ran when an engine process died."""

import os
import sys
from collections.abc import Iterator

import pytest

from holdfast.server.ipc.pass_record import PassRecord, create_pass_record


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = create_pass_record()
    yield made
    os.close(made)


def test_other_mapping_reads_what_was_written(descriptor: int) -> None:
    engine, frontend = PassRecord(descriptor), PassRecord(descriptor)
    assert frontend.running_ids == frozenset() and frontend.longest_step == 0.0
    engine.write_running([7, 1 << 40])
    engine.write_longest_step(0.25)
    assert frontend.running_ids == {7, 1 << 40} and frontend.longest_step == 0.25
    engine.write_running([])
    assert frontend.running_ids == frozenset()
    engine.close()
    frontend.close()


def test_ids_beyond_its_size_are_left_out(descriptor: int) -> None:
    record = PassRecord(descriptor)
    record.write_running(range(20_000))
    assert record.running_ids == frozenset(range(8192))
    record.close()


@pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")
def test_record_needs_no_disk(descriptor: int) -> None:
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
