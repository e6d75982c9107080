"""Experts in safetensors: one tensor for each or for all of them; what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import parse_config
from holdfast.models.decoder import load_decoder
from holdfast.numerics.backends.torch.backend import TorchBackend
from support.tiny import random_model, tiny_model

Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_experts_in_one_tensor_are_the_same_experts(family: str, tmp_path: Path) -> None:
    plain = open_checkpoint(tiny_model(tmp_path / "plain", family))
    folder = tiny_model(tmp_path / "fused", family)
    state = {name: value.contiguous() for name, value in random_model(family).state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in state)
    save_file(state, folder / "model.safetensors")
    fused = open_checkpoint(folder)
    assert fused.names() == plain.names()
    for name in plain.names():
        assert torch.equal(fused.tensor(name), plain.tensor(name))
        assert bytes(fused.raw(name).data) == bytes(plain.raw(name).data)


def _edit(folder: Path, change: Callable[[Tensors], None]) -> Path:
    file = folder / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    return folder


def _configure(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.4.up_proj.weight"
    folder = _edit(tiny_model(tmp_path, "qwen3_moe"), lambda tensors: tensors.pop(name))
    with pytest.raises(BadWeights, match=rf"missing: {name}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("count", [4, 8], ids=["fewer", "more"])
def test_another_number_of_experts_is_refused(count: int, tmp_path: Path) -> None:
    folder = _configure(tiny_model(tmp_path, "qwen3_moe"), num_experts=count, num_local_experts=count)
    with pytest.raises(BadWeights, match=rf"mlp.gate.weight \[6, 64\] instead of \[{count}, 64\]"):
        open_checkpoint(folder)


def test_a_router_with_nan_is_refused(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.gate.weight"
    folder = _edit(tiny_model(tmp_path, "qwen3_moe"), lambda tensors: tensors[name][2].fill_(float("nan")))
    with pytest.raises(BadWeights, match=f"{name} contains NaN"):
        load_decoder(open_checkpoint(folder), TorchBackend(torch.float32), torch.float32, 64)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts": 0, "num_local_experts": 0}, "num_experts"),
        ({"num_experts": 5, "num_local_experts": 6}, "num_local_experts"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
    ],
    ids=["no-experts", "two-counts", "too-many", "none", "names", "no-step", "number"],
)
def test_bad_fields_are_refused(changes: dict[str, Any], key: str) -> None:
    fields = random_model("qwen3_moe").config.to_dict() | {"model_type": "qwen3_moe"}
    with pytest.raises(UnsupportedModel, match=key):
        parse_config(fields | changes)
