"""Every family and number format from GGUF, against the same file read and dequantised by
transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.engine.llm.llm import LLM
from parity.compare import assert_parity, open_reference, raw_logits
from support.tiny import VOCAB_SIZE, tiny_gguf, tiny_model

# transformers takes heads of 128 for granted in a qwen3 GGUF; K formats need rows of 256.
QWEN3 = {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "std": 0.1}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-F32": ("llama", "F32", {}),
    "llama-F16-tied": ("llama", "F16", {"tie_word_embeddings": True}),
    "llama-Q8_0": ("llama", "Q8_0", {}),
    "llama-Q4_0": ("llama", "Q4_0", {}),
    "llama-Q4_1": ("llama", "Q4_1", {}),
    "llama-Q5_0": ("llama", "Q5_0", {}),
    "llama-Q5_1": ("llama", "Q5_1", {}),
    "llama-Q4_K": ("llama", "Q4_K", WIDE),
    "llama-Q5_K": ("llama", "Q5_K", WIDE),
    "llama-Q6_K": ("llama", "Q6_K", WIDE),
    "mistral-BF16": ("mistral", "BF16", {}),
    "qwen2-F32": ("qwen2", "F32", {}),
    "qwen2-Q8_0-tied": ("qwen2", "Q8_0", {"tie_word_embeddings": True}),
    "qwen3-F16": ("qwen3", "F16", QWEN3),
    "qwen3-Q4_0": ("qwen3", "Q4_0", QWEN3),
}
LIBRARY_TOO = {
    "llama-Q4_0",
    "mistral-BF16",
    "qwen2-F32",
    "qwen3-F16",
}  # the numbers are the same from here on


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logits_match_transformers(case: str, tmp_path: Path) -> None:
    family, quant, changes = CASES[case]
    path = tiny_gguf(tmp_path / "model.gguf", family, quant, **changes)
    model = open_reference(path)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (2, 70)]
    assert_parity(path, model, prompts, "c", max_tokens=24)
    if case in LIBRARY_TOO:
        assert_parity(path, model, prompts[:1], "torch", max_tokens=8)


MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3_moe": {},
    "olmoe": {"clip_qkv": 0.5},
    "gpt_oss": {"swiglu_limit": 7.0, "num_hidden_layers": 2},
    "lfm2": {},
    "lfm2_moe": {"tie_word_embeddings": True},
}
QUICK = ["gpt_oss", "lfm2"]
SLOW = [pytest.param(name, marks=pytest.mark.long) for name in MIXTURES if name not in QUICK]


# The heads of a file may stand in another order, and decays are stored: near, not the same bits.
RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_moe_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_only_layers": [],
    },
    "granitemoehybrid": {},
    "falcon_h1": {},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention", "mlp"]
    },
    "nemotron_h-experts": {
        "layers_block_type": ["linear_attention", "full_attention", "moe", "linear_attention"]
    },
}


@pytest.mark.parametrize(
    "family", [*[pytest.param(name, marks=pytest.mark.long) for name in RECURRENT][1:], "qwen3_5_text"]
)
def test_recurrent_models_compute_what_safetensors_do(family: str, tmp_path: Path) -> None:
    changes = {**RECURRENT[family], "std": 0.1}
    family = family.partition("-")[0]
    folder = tiny_model(tmp_path / "folder", family, **changes)
    file = tiny_gguf(tmp_path / "model.gguf", family, **changes)
    prompt = torch.randint(0, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(8)).tolist()
    limits: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 4, "determinism": "off"}
    for kernels in ("c", "torch"):
        plain, stored = (
            raw_logits(LLM(str(path), kernels=kernels, **limits), prompt, 16, True) for path in (folder, file)
        )
        assert torch.allclose(plain, stored, rtol=1e-4, atol=1e-4)
        assert plain.std() > 0.05


@pytest.mark.parametrize(
    "family",
    [
        *[
            pytest.param(name, marks=pytest.mark.long)
            for name in (*RECURRENT, "lfm2")
            if name != "qwen3_5_text"
        ],
        "qwen3_5_text",
    ],
)
def test_recurrent_models_compute_with_quantised_blocks(family: str, tmp_path: Path) -> None:
    """Near what the dequantised weights give: activations have 8 bits."""
    changes = {**RECURRENT.get(family, {}), "std": 0.1}
    file = tiny_gguf(tmp_path / "model.gguf", family.partition("-")[0], "Q8_0", **changes)
    prompt = torch.randint(0, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(8)).tolist()
    limits: dict[str, Any] = {"max_pass_tokens": 64, "max_num_seqs": 4, "determinism": "off"}
    with LLM(str(file), **limits) as llm, LLM(str(file), dtype="fp32", **limits) as plain:
        assert any(one.linear.blocks for one in llm.engine.runner._decoder.linears())  # type: ignore[attr-defined]
        found, expected = (raw_logits(each, prompt, 16, True) for each in (llm, plain))
    assert not torch.equal(found, expected)
    assert (found - expected).std() < 0.1 * expected.std()


@pytest.mark.parametrize("family", [*QUICK, *SLOW])
def test_mixtures_and_recurrent_models_have_the_bits_of_safetensors(family: str, tmp_path: Path) -> None:
    changes = MIXTURES[family]
    folder = tiny_model(tmp_path / "folder", family, **changes)
    # GGUF has fp32 where a configuration has fp64: both get what GGUF has
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    eps = "norm_eps" if family.startswith("lfm2") else "rms_norm_eps"
    fields[eps] = float(np.float32(fields[eps]))
    config.write_text(json.dumps(fields))
    file = tiny_gguf(tmp_path / "model.gguf", family, **changes)
    prompt = torch.randint(0, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(8)).tolist()
    limits: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 4, "determinism": "off"}
    plain, stored = (raw_logits(LLM(str(path), **limits), prompt, 16, True) for path in (folder, file))
    assert torch.equal(plain, stored)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "quant"),
    [("qwen2_moe", "F32"), ("qwen2_moe", "Q8_0"), ("qwen3_moe", "F32"), ("qwen3_moe", "Q4_0")],
)
def test_mixtures_match_transformers(family: str, quant: str, tmp_path: Path) -> None:
    changes = {"mlp_only_layers": [], "head_dim": 16} if family == "qwen2_moe" else QWEN3
    path = tiny_gguf(tmp_path / "model.gguf", family, quant, **changes)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (2, 70)]
    assert_parity(path, open_reference(path), prompts, "c", max_tokens=24)
