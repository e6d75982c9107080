"""Files of the cache folder: what is read is what was written under this name, or nothing."""

import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.numerics.cache_dir import read_checked, read_json, write_checked
from support.damage import DAMAGES

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "file"
    write_checked(path, CONTENT)
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_not_read_and_is_replaced(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_harmless = damage == "a link to it" or (damage == "unreadable" and os.geteuid() == 0)
    DAMAGES[damage](path)
    with caplog.at_level(logging.WARNING):
        found = [read_checked(path) for _ in range(2)]
    assert found == [CONTENT if is_harmless else None] * 2
    is_noticed = not is_harmless and damage not in ("missing", "a link to nowhere")
    assert len(caplog.records) == is_noticed
    assert not is_noticed or str(path) in caplog.text
    write_checked(path, b"anew")
    assert read_checked(path) == b"anew" and path.is_file() and not path.is_symlink()


def test_every_length_and_every_bit_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checked(path, b"short")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read_checked(path) is None
    for bit in range(8 * len(whole)):
        path.write_bytes((int.from_bytes(whole) ^ (1 << bit)).to_bytes(len(whole)))
        assert read_checked(path) is None
    path.write_bytes(whole)
    assert read_checked(path) == b"short"


def test_file_does_not_pass_for_another(path: Path) -> None:
    path.rename(path.with_name("other"))
    assert read_checked(path.with_name("other")) is None


def test_content_of_another_form_is_nothing(path: Path) -> None:
    for content in (b"{", b'"text"', b"[" * 100_000, b""):
        write_checked(path, content)
        assert read_json(path, dict[str, int]) is None
    write_checked(path, b'{"a": 1}')
    assert read_json(path, dict[str, int]) == {"a": 1}


def test_full_disk_leaves_the_file_as_it_was(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 1, len(CONTENT), len(CONTENT) + 64):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                write_checked(path, CONTENT[::-1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert read_checked(path) == CONTENT
    assert [one.name for one in path.parent.iterdir()] == ["file"]


_WRITE = """
import sys
from pathlib import Path
from holdfast.numerics.cache_dir import write_checked
print("ready", flush=True)
for number in range(1_000_000):
    write_checked(Path(sys.argv[1]), str(number).encode() * 100_000)
"""


def test_writers_that_are_killed_leave_a_whole_file(path: Path) -> None:
    """Two write at once; what they leave unfinished is removed later."""
    for seconds in (0.0, 0.004, 0.02):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITE, str(path)], stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for one in writers:
            assert one.stdout is not None and one.stdout.readline()
        time.sleep(seconds)
        for one in writers:
            one.send_signal(signal.SIGKILL)
            one.communicate()
        found = read_checked(path)
        assert found is not None and (found == CONTENT or found[: len(found) // 100_000] * 100_000 == found)
    left = path.with_name("of one that was killed.unfinished")
    left.touch()
    os.utime(left, (0, 0))
    write_checked(path, CONTENT)
    assert not left.exists()
