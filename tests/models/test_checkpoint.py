"""The stored bytes of a checkpoint: those hashed are those loaded. Pages of a mapped file are given back, and
mapped again when they are read."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.reader import STORED
from models.gguf_writer import write_gguf
from support.tiny import random_model, tiny_gguf

FORMATS = {stored.name: stored for stored in STORED.values()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_gguf_raw_bytes_are_in_hugging_face_row_order(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", family, "Q8_0"))
    formats = set()
    for name in checkpoint.names():
        raw = checkpoint.raw(name)
        formats.add(raw.format)
        numbers = dequantize(np.frombuffer(raw.data, np.uint8), FORMATS[raw.format])
        assert torch.equal(numbers.view(checkpoint.shape(name)), checkpoint.tensor(name)), name
    assert formats == {"F32", "Q8_0"}


def test_raw_bytes_are_memory_mapped(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", "qwen2", "Q8_0"))
    first, second = (checkpoint.raw("model.layers.0.mlp.up_proj.weight").data for _ in range(2))
    assert first.obj.__array_interface__["data"] == second.obj.__array_interface__["data"]


def test_dummy_raw_bytes_identify_their_inputs() -> None:
    name = "lm_head.weight"

    def raw(**changes: object) -> bytes:
        return DummyCheckpoint(tiny_config(), **changes).raw(name).data.tobytes()  # type: ignore[arg-type]

    assert raw() == raw()
    assert len({raw(), raw(seed=1), raw(deviation=0.5), raw(twins=True)}) == 4


# Released pages


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
    path = write_gguf(tmp_path / "tiny.gguf", random_model("llama", hidden_size=256, intermediate_size=1024))
    checkpoint = open_checkpoint(path)
    before = {name: bytes(checkpoint.raw(name).data) for name in checkpoint.names()}
    read = resident_kib(path)
    assert read > 1000
    checkpoint.release()
    assert resident_kib(path) < read // 4
    assert {name: bytes(checkpoint.raw(name).data) for name in checkpoint.names()} == before


def test_released_folder_is_opened_again(tiny_llama: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama)
    name = checkpoint.names()[0]
    before = checkpoint.tensor(name)
    checkpoint.release()
    assert torch.equal(checkpoint.tensor(name), before)
