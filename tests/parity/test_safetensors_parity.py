"""Every family from safetensors: same greedy tokens as transformers in fp32, logits within 1e-4."""

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.engine.llm.llm import LLM
from parity.compare import assert_parity, open_reference
from support.tiny import VOCAB_SIZE, tiny_model


def yarn(theta: float = 10000.0) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-biases-sharded": {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "sharded": True,
    },
    "llama-llama3-rope": {"rope_parameters": LLAMA3_ROPE, "num_key_value_heads": 4},
    "llama-linear-rope-head-dim": {"rope_parameters": LINEAR_ROPE, "head_dim": 40},
    "mistral": {"head_dim": 16},
    "mistral-window-one-kv-head": {"sliding_window": 20, "num_key_value_heads": 1},
    "qwen2-tied": {"tie_word_embeddings": True},
    "qwen2-window-layers": {
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "rope_parameters": yarn(),
    },
    "qwen3-sharded": {"sharded": True},
    "qwen3-layer-types": {
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 17,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_parameters": yarn(100000.0),
    },
}


CERTIFIED = ("llama", "mistral-window-one-kv-head", "qwen3-layer-types")


def prompts(seed: int = 5) -> list[list[int]]:
    """Prompts of one token, of a few, and longer than any window, page or chunk here."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (1, 19, 150)]


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_and_logits_match_transformers(name: str, tmp_path: Path) -> None:
    """Some are certified, and computed by torch too. The others' deterministic answers are verified."""
    folder = tiny_model(tmp_path / "model", name.split("-")[0], **VARIANTS[name])
    model = open_reference(folder)
    if name in CERTIFIED:
        assert_parity(folder, model, prompts(), "c", max_tokens=24)
        assert_parity(folder, model, prompts(), "torch", max_tokens=12)
    else:
        assert_parity(folder, model, prompts(), "c", max_tokens=24, certification="background")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in CERTIFIED])
def test_torch_backend_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", name.split("-")[0], **VARIANTS[name])
    model = open_reference(folder)
    assert_parity(folder, model, prompts(), "torch", max_tokens=12, certification="background")


def test_variants_have_their_features(tmp_path: Path) -> None:
    """Ignoring the window or the rope scaling would change the logits."""
    plain, windowed = (
        LLM(str(tiny_model(tmp_path / name, "mistral", **changes)), dtype="fp32", max_pass_tokens=64)
        for name, changes in (("plain", {}), ("windowed", {"sliding_window": 20}))
    )
    long = prompts()[2]
    first, second = (llm.generate([long])[0].token_ids for llm in (plain, windowed))
    assert first != second
