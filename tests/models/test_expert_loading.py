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
from holdfast.models.rope import YarnRope
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.torch.backend import TorchBackend
from support.tiny import random_model, tiny_model, tiny_mxfp4

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


def _edit(folder: Path, change: Callable[[Tensors], object]) -> Path:
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


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts": 0, "num_local_experts": 0}, "num_experts"),
        ({"num_experts": 5, "num_local_experts": 6}, "num_local_experts"),
        ({"num_experts": 4096, "num_local_experts": 4096, "num_hidden_layers": 1000}, "num_experts"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
    ],
    ids=["no-experts", "two-counts", "more-than-any", "too-many", "none", "names", "no-step", "number"],
)
def test_bad_fields_are_refused(changes: dict[str, Any], key: str) -> None:
    fields = random_model("qwen3_moe").config.to_dict() | {"model_type": "qwen3_moe"}
    with pytest.raises(UnsupportedModel, match=key):
        parse_config(fields | changes)


PREFIX = "model.layers.1.mlp.experts."


def _pop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def _set(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = value(tensors[name]).contiguous()

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_pop(f"{PREFIX}down_proj_blocks"), rf"missing: {PREFIX}down_proj_blocks$"),
        (_pop(f"{PREFIX}gate_up_proj_scales"), rf"missing: {PREFIX}gate_up_proj_scales$"),
        (_pop(f"{PREFIX}gate_up_proj_bias"), rf"missing: {PREFIX}gate_up_proj_bias$"),
        (_pop("model.layers.0.self_attn.sinks"), r"missing: model.layers.0.self_attn.sinks$"),
        (_pop("model.layers.2.mlp.router.bias"), r"missing: model.layers.2.mlp.router.bias$"),
        (
            _set(f"{PREFIX}down_proj_blocks", lambda one: one[:, :, :-1]),
            rf"{PREFIX}down_proj_blocks \[6, 64, 4, 16\] instead of \[6, 64, 5, 16\]",
        ),
        (
            _set(f"{PREFIX}gate_up_proj_blocks", lambda one: one[:5]),
            rf"{PREFIX}gate_up_proj_blocks \[5, 320, 2, 16\] instead of \[6, 320, 2, 16\]",
        ),
        (
            _set(f"{PREFIX}gate_up_proj_scales", lambda one: one.float()),
            rf"{PREFIX}gate_up_proj_scales is stored as F32; Holdfast reads it in U8",
        ),
    ],
    ids=["blocks", "scales", "bias", "sinks", "router", "truncated", "fewer", "dtype"],
)
def test_mxfp4_experts_that_are_not_whole_are_refused(
    change: Callable[[Tensors], object], said: str, tmp_path: Path
) -> None:
    folder = _edit(tiny_mxfp4(tmp_path), change)
    with pytest.raises((BadWeights, UnsupportedModel), match=said):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("family", "name", "number"),
    [
        ("gpt_oss", "mlp.router.weight", "inf"),
        ("gpt_oss", "mlp.router.bias", "nan"),
        ("gpt_oss", "self_attn.sinks", "inf"),
        ("qwen3_moe", "mlp.gate.weight", "nan"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(family: str, name: str, number: str, tmp_path: Path) -> None:
    name = f"model.layers.1.{name}"
    folder = _edit(tiny_model(tmp_path, family), lambda tensors: tensors[name][2].fill_(float(number)))
    with pytest.raises(BadWeights, match=f"{name} contains NaN or infinite numbers"):
        load_decoder(open_checkpoint(folder), TorchBackend(torch.float32), torch.float32, 64)


def test_mxfp4_needs_whole_blocks(tmp_path: Path) -> None:
    folder = _configure(tiny_mxfp4(tmp_path), intermediate_size=150)
    with pytest.raises(UnsupportedModel, match="blocks of 32 numbers, which its 150 inputs"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swiglu_limit": 0}, "swiglu_limit = 0"),
        ({"swiglu_alpha": float("nan")}, "swiglu_alpha = nan"),
        ({"num_local_experts": 2, "num_experts": 2}, "num_experts_per_tok = 3"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": None}, "layer_types"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\).*mxfp4"),
        ({"quantization_config": "mxfp4"}, "quantised"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "mxfp4"}}, r"quantised \(mxfp4\)"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "truncate": "no"}}, "truncate"),
    ],
    ids=["limit", "alpha", "experts", "layers", "window", "gptq", "text", "llama", "rope"],
)
def test_bad_fields_of_gpt_oss_are_refused(changes: dict[str, Any], said: str) -> None:
    fields = random_model("gpt_oss").config.to_dict() | {"model_type": "gpt_oss"}
    with pytest.raises(UnsupportedModel, match=said):
        parse_config(fields | changes)


def test_published_rope_is_the_default() -> None:
    """A configuration without rope scaling, as transformers reads it."""
    fields = random_model("gpt_oss").config.to_dict()
    config = parse_config({key: value for key, value in fields.items() if not key.startswith("rope")})
    assert config.rope_scaling == YarnRope(32.0, 4096, truncate=False)
    assert config.rope_theta == 150000.0
