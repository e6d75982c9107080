"""Pages of a mapped checkpoint: given back after the weights are loaded, and mapped again when read."""

import sys
from pathlib import Path

import pytest

from holdfast.models.checkpoint import open_checkpoint, release_pages
from models.gguf_writer import write_gguf
from models.tiny import tiny_model


def resident_kib(path: Path) -> int:
    """Resident pages of this file in this process."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(":")[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_pages_are_not_resident_and_have_the_same_content(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", hidden_size=256, intermediate_size=1024))
    checkpoint = open_checkpoint(path)
    before = {name: bytes(checkpoint.raw(name).data) for name in checkpoint.names()}
    read = resident_kib(path)
    assert read > 1000
    release_pages(checkpoint)
    assert resident_kib(path) < read // 4
    assert {name: bytes(checkpoint.raw(name).data) for name in checkpoint.names()} == before


def test_released_folder_is_opened_again(tiny_llama: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama)
    name = checkpoint.names()[0]
    before = checkpoint.tensor(name)
    release_pages(checkpoint)
    assert checkpoint.tensor(name).equal(before)
