"""Malformed GGUF files: opening one raises `ModelError`, quickly and without a large allocation."""

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from holdfast.errors import ModelError
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.gguf.reader import GgufFile
from models.gguf_writer import write_gguf
from support.tiny import random_model

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "vocab_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}
HUGE = (1 << 63, (1 << 64) - 1, 1 << 40, 1 << 32, 1 << 24, 65536)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    metadata = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(24)], "tokenizer.ggml.scores": [0.5] * 24}
    folder = tmp_path_factory.mktemp("valid")
    return write_gguf(folder / "tiny.gguf", random_model("llama", **SMALL), "Q8_0", metadata).read_bytes()


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def refused(path: Path, content: bytes) -> None:
    """In at most five seconds of CPU time."""
    path.write_bytes(content)
    started, working = time.perf_counter(), time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert time.thread_time() - working < 5
    assert time.perf_counter() - started < 60


def test_every_truncation_is_an_error(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in range(0, len(valid), 64):
        path.write_bytes(valid[:size])
        with pytest.raises(ModelError):
            open_checkpoint(path)


@pytest.mark.parametrize("count", HUGE)
def test_huge_counts_are_refused_without_allocation(count: int, valid: bytes, tmp_path: Path) -> None:
    packed, path = struct.pack("<Q", count), tmp_path / "huge.gguf"
    refused(path, valid[:8] + packed + valid[16:])
    refused(path, valid[:16] + packed + valid[24:])
    refused(path, valid[:24] + packed + valid[32:])
    tokens = valid.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    refused(path, valid[: tokens + 8] + packed + valid[tokens + 16 :])
    refused(path, valid[: tokens + 16] + packed + valid[tokens + 24 :])
    embedding = valid.index(b"token_embd.weight") + len(b"token_embd.weight")
    refused(path, valid[: embedding + 4] + packed + valid[embedding + 12 :])
    refused(path, valid[: embedding + 24] + packed + valid[embedding + 32 :])


def test_malformed_files_are_refused(tmp_path: Path, valid: bytes) -> None:
    path = tmp_path / "other.gguf"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    nested = header + string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000 + bytes(100)
    wide = header + string(b"k") + struct.pack("<IIQ", 9, 9, 20000) + struct.pack("<IQ", 0, 0) * 20000
    for content in (
        b"",
        b"GGUF",
        b"\x80\x04" + bytes(100),
        b"PK\x03\x04" + bytes(100),
        bytes(4096),
        b"GGUF" + struct.pack("<I", 1) + bytes(100),
        b"GGUF" + struct.pack(">I", 3) + bytes(100),
        header + string(b"k") + struct.pack("<I", 77) + bytes(100),
        header + string(b"\xff\xfe") + struct.pack("<I", 0) + bytes(100),
        header + string(b"general.alignment") + struct.pack("<II", 4, 0) + bytes(100),
        header + string(b"general.alignment") + struct.pack("<II", 4, 1 << 31) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (string(b"k") + struct.pack("<IB", 0, 1)) * 2 + bytes(100),
        nested,
        wide,
        valid.replace(b"llama.block_count", b"llama.block_xxxxx"),
        valid.replace(b"token_embd.weight", b"output_norm.weight"[:17]),
        valid.replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight"),
    ):
        refused(path, content)


def test_random_damage_never_crashes(tmp_path: Path, valid: bytes) -> None:
    """A changed header may still describe a model; then every tensor can be read."""
    path, rng = tmp_path / "damaged.gguf", random.Random(11)
    data_start = len(valid) - sum(t.num_bytes + 32 for t in open_whole(tmp_path, valid).tensors.values())
    for _ in range(400):
        damaged = bytearray(valid)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(data_start)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
        except ModelError:
            continue
        for name in checkpoint.names():
            assert tuple(checkpoint.tensor(name).shape) == checkpoint.shape(name)


def open_whole(folder: Path, valid: bytes) -> GgufFile:
    (folder / "valid.gguf").write_bytes(valid)
    return GgufFile(folder / "valid.gguf")
