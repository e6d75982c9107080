"""Experts in GGUF files: the tensors of safetensors, however they are stored; what is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.gguf.dequantize import dequantize, dequantize_mxfp4
from holdfast.models.gguf.reader import STORED
from models.gguf_writer import write_gguf
from support.tiny import random_model, tiny_gguf, tiny_mxfp4


def _same_tensors(found: Checkpoint, expected: Checkpoint) -> None:
    assert found.names() == expected.names()
    for name in expected.names():
        assert torch.equal(found.tensor(name), expected.tensor(name)), name
        assert bytes(found.raw(name).data) == bytes(expected.raw(name).data), name


@pytest.mark.parametrize(
    ("family", "experts"),
    [("mixtral", "alone"), ("mixtral", "gate_up"), ("qwen2_moe", "gate_up"), ("gpt_oss", "gate_up")],
)
def test_storage_does_not_change_experts(family: str, experts: str, tmp_path: Path) -> None:
    changes = {"mlp_only_layers": []} if family == "qwen2_moe" else {}
    plain = open_checkpoint(tiny_gguf(tmp_path / "plain.gguf", family, "Q8_0", **changes))
    other = tiny_gguf(tmp_path / "other.gguf", family, "Q8_0", experts=experts, **changes)
    _same_tensors(open_checkpoint(other), plain)


def test_mxfp4_of_safetensors_and_gguf_are_the_same_numbers(tmp_path: Path) -> None:
    """The same codes, in the order of each format; and each expert of a folder is its own part."""
    folder = tiny_mxfp4(tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.layers.1.mlp.experts."
    blocks, scales = (tensors[f"{prefix}gate_up_proj_{kind}"] for kind in ("blocks", "scales"))
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)  # [experts, 2 I, groups, 32]
    packed = codes[..., :16] | (codes[..., 16:] << 4)
    raw = torch.cat((scales[..., None], packed), -1)
    wanted = dequantize(raw.flatten().numpy(), STORED[39]).view(*scales.shape[:2], -1)
    checkpoint = open_checkpoint(folder)
    for number, (kind, start) in ((0, ("gate", 0)), (5, ("up", 1))):
        found = checkpoint.tensor(f"{prefix}{number}.{kind}_proj.weight")
        assert torch.equal(found, wanted[number, start::2])
    stored = checkpoint.raw(f"{prefix}3.down_proj.weight")
    assert (stored.format, len(stored.data)) == ("MXFP4", 64 * 160 // 32 * 17)
    table = torch.tensor(gguf.quants.MXFP4.kvalues) / 2
    exact = table[codes.long()] * torch.exp2(scales.double() - 127)[..., None]
    assert torch.equal(dequantize_mxfp4(blocks[2].numpy(), scales[2].numpy()).double(), exact[2].flatten(-2))


@pytest.mark.parametrize(
    ("family", "arch", "changes", "said"),
    [
        ("qwen3_moe", "qwen3moe", {"expert_count": 5}, r"ffn_gate_inp.weight \[6, 64\] instead of \[5, 64\]"),
        ("qwen3_moe", "qwen3moe", {"expert_count": 0}, "expert_count = 0"),
        ("qwen3_moe", "qwen3moe", {"expert_used_count": 7}, "num_experts_per_tok = 7"),
        ("qwen3_moe", "qwen3moe", {"expert_feed_forward_length": 32}, r"ffn_gate_exps.weight \[6, 48, 64\]"),
        ("olmoe", "olmoe", {"expert_gating_func": 2}, "expert_gating_func = 2"),
        ("olmoe", "olmoe", {"expert_weights_scale": 2.5}, "expert_weights_scale = 2.5"),
        ("qwen2", "qwen2", {"expert_count": 4}, "mixture of experts"),
        ("mixtral", "llama", {"attention.clamp_kqv": 8.0}, "clamp_kqv = 8.0"),
    ],
    ids=["fewer", "none", "too-many", "size", "sigmoid", "scale", "dense", "clamp"],
)
def test_metadata_that_contradicts_the_tensors_is_refused(
    family: str, arch: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    class Writer(gguf.GGUFWriter):
        def write_header_to_file(self, path: Path | None = None) -> None:
            for key, value in changes.items():
                kind = gguf.GGUFValueType.get_type(value)
                self.kv_data[0][f"{arch}.{key}"] = gguf.gguf_writer.GGUFValue(value=value, type=kind)
            super().write_header_to_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Writer)
        path = write_gguf(tmp_path / "tiny.gguf", random_model(family))
    with pytest.raises((BadWeights, UnsupportedModel), match=said):
        open_checkpoint(path)


def test_missing_experts_are_named(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", "olmoe")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up_exps.weight", b"blk.1.ffn_xx_exps.weight"))
    with pytest.raises(BadWeights, match=r"missing: blk\.1\.ffn_up_exps\.weight$"):
        open_checkpoint(path)
    alone = tiny_gguf(tmp_path / "alone.gguf", "mixtral", experts="alone")
    whole = alone.read_bytes()
    alone.write_bytes(whole.replace(b"blk.1.ffn_up.3.weight", b"blk.1.ffn_up.9.weight"))
    with pytest.raises(BadWeights, match=r"missing: blk\.1\.ffn_up\.3\.weight$"):
        open_checkpoint(alone)


def test_mxfp4_is_read_as_the_gguf_package_does_and_refused_if_cut_off(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", "gpt_oss", "MXFP4")
    checkpoint = open_checkpoint(path)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    assert checkpoint.raw(name).format == "MXFP4"
    values = np.frombuffer(checkpoint.raw(name).data, np.uint8).reshape(160, -1)
    kind = gguf.GGMLQuantizationType.MXFP4
    assert np.array_equal(checkpoint.tensor(name).numpy(), gguf.quants.dequantize(values, kind))
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(BadWeights, match="is not inside the file"):
        open_checkpoint(path)
