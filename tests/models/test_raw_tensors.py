"""The stored bytes of a checkpoint: what is hashed is what is loaded."""

from pathlib import Path

import pytest
import torch

from holdfast.bench.tiny import tiny_config
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.types import STORED
from support.tiny import random_model, tiny_gguf, tiny_model

FORMATS = {stored.name: stored for stored in STORED.values()}


@pytest.mark.parametrize("sharded", [False, True])
def test_safetensors_bytes_are_the_tensor_s(tmp_path: Path, sharded: bool) -> None:
    checkpoint = open_checkpoint(tiny_model(tmp_path / "model", sharded=sharded))
    for name in checkpoint.names():
        raw = checkpoint.raw(name)
        assert raw.format == "F32"
        assert raw.data.tobytes() == checkpoint.tensor(name).numpy().tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_too(tmp_path: Path, dtype: str) -> None:
    model = random_model("llama").to({"BF16": torch.bfloat16, "F16": torch.float16}[dtype])
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    raw = checkpoint.raw("model.norm.weight")
    assert raw.format == dtype
    stored = torch.frombuffer(bytearray(raw.data), dtype=checkpoint.tensor("model.norm.weight").dtype)
    assert torch.equal(stored, checkpoint.tensor("model.norm.weight"))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_gguf_bytes_are_in_the_order_of_the_loaded_rows(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", family, "Q8_0"))
    kinds = set()
    for name in checkpoint.names():
        raw = checkpoint.raw(name)
        kinds.add(raw.format)
        numbers = dequantize(torch.frombuffer(bytearray(raw.data), dtype=torch.uint8), FORMATS[raw.format])
        assert torch.equal(numbers.view(checkpoint.shape(name)), checkpoint.tensor(name)), name
    assert kinds == {"F32", "Q8_0"}


def test_mapped_bytes_are_not_copied(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", "qwen2", "Q8_0"))
    first, second = (checkpoint.raw("model.layers.0.mlp.up_proj.weight").data for _ in range(2))
    assert first.obj.__array_interface__["data"] == second.obj.__array_interface__["data"]


def test_random_weights_tell_what_they_are_made_from() -> None:
    name = "lm_head.weight"

    def raw(**changes: object) -> bytes:
        return DummyCheckpoint(tiny_config(), **changes).raw(name).data.tobytes()  # type: ignore[arg-type]

    assert raw() == raw()
    assert len({raw(), raw(seed=1), raw(deviation=0.5), raw(twins=True)}) == 4


def test_other_names_are_unknown(tiny_llama: Path) -> None:
    with pytest.raises(KeyError):
        open_checkpoint(tiny_llama).raw("model.rotary_emb.inv_freq")
