"""The families that are not Llama's kind, from safetensors: same greedy tokens as transformers in
fp32, logits within 1e-4, and one answer among other requests and alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.engine.llm.llm import LLM
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import DecoderConfig
from parity.compare import TOLERANCE, assert_parity, open_reference, raw_logits, reference_logits
from support.tiny import LONG_PHI, VOCAB_SIZE, random_model, tiny_model, tiny_mxfp4, write_tokenizer

VARIANTS: dict[str, dict[str, Any]] = {
    "granite": {},
    "smollm3": {},
    "phi3": {},
    "olmo2": {},
    "gemma2": {},
    "gemma3_text": {"tie_word_embeddings": True},
    "cohere2": {},
    "mixtral": {},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "olmoe": {},
    "gpt_oss": {},
    "lfm2": {},
    "granitemoehybrid": {"std": 0.1},
    "falcon_h1": {"std": 0.1},
    "lfm2_moe": {},
    "nemotron_h": {"std": 0.1},
    "olmo_hybrid": {"std": 0.1, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "qwen3_next": {"std": 0.1},
    "qwen3_5_text": {"std": 0.1},
    "qwen3_5_moe_text": {"std": 0.1},
}
CORNERS: dict[str, dict[str, Any]] = {
    "falcon_h1-norm": {
        "std": 0.1,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": True,
        "num_hidden_layers": 2,
    },
    "falcon_h1-gate-first": {"std": 0.1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    "granitemoehybrid-dense": {"std": 0.1, "num_local_experts": 0, "position_embedding_type": "rope"},
    "olmo_hybrid-rope": {
        "std": 0.1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
        "linear_allow_neg_eigval": False,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "num_key_value_heads": 1,
        "attention_bias": True,
    },
    "nemotron_h-biases": {
        "std": 0.1,
        "mlp_bias": True,
        "use_bias": True,
        "use_conv_bias": False,
        "norm_topk_prob": False,
        "layers_block_type": ["full_attention", "linear_attention", "mlp"],
    },
    "granite-tied-biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "smollm3-windows-sharded": {
        "use_sliding_window": True,
        "sliding_window": 17,
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
        "sharded": True,
    },
    "phi3-window": {"sliding_window": 20, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "olmo2-one-kv-head": {"num_key_value_heads": 1, "attention_bias": True},
    "gemma2-tied-no-caps": {
        "tie_word_embeddings": True,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "gemma3_text-untied-caps": {
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    },
    "mixtral-one-expert-tied": {
        "num_local_experts": 1,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
    },
    "mixtral-window-sharded": {"sliding_window": 17, "sharded": True},
    "qwen2_moe-sparse-step-normalized": {
        "decoder_sparse_step": 2,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "num_experts_per_tok": 6,
    },
    "qwen3_moe-all-experts": {"num_experts_per_tok": 6, "norm_topk_prob": False, "mlp_only_layers": [0]},
    "olmoe-normalized-tied": {"norm_topk_prob": True, "tie_word_embeddings": True},
    "cohere2-tied-biases": {"tie_word_embeddings": True, "attention_bias": True},
    "olmoe-clipped": {"clip_qkv": 0.7, "num_key_value_heads": 1},
    "gpt_oss-one-expert-tied": {
        "num_local_experts": 1,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "gpt_oss-all-experts-sharded": {
        "num_experts_per_tok": 6,
        "num_key_value_heads": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "sliding_window": 70,
        "swiglu_limit": 7.0,
        "swiglu_alpha": 1.1,
        "sharded": True,
    },
    "gpt_oss-other-rope": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "layer_types": ["full_attention"] * 3,
        "num_key_value_heads": 1,
    },
}


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("family", VARIANTS)
def test_tokens_and_logits_match_transformers(family: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, family, **VARIANTS[family])
    model = open_reference(folder)
    assert_parity(folder, model, prompts(1, 70), "c", max_tokens=8, certification="background")


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["c", "torch"])
@pytest.mark.parametrize("name", [*VARIANTS, *CORNERS])
def test_corners_match_transformers(name: str, kernels: str, tmp_path: Path) -> None:
    changes = (VARIANTS | CORNERS)[name]
    folder = tiny_model(tmp_path, name.split("-")[0], **changes)
    assert_parity(folder, open_reference(folder), prompts(1, 19, 150), kernels, max_tokens=24)


def test_mxfp4_experts_match_transformers(tmp_path: Path) -> None:
    folder = tiny_mxfp4(tmp_path, num_hidden_layers=2)
    model = open_reference(folder).float()  # the numbers are exact in bf16
    assert_parity(folder, model, prompts(1, 40), "c", max_tokens=8, certification="background")


@pytest.mark.parametrize(("max_len", "length"), [(64, 40), (512, 100)], ids=["short", "long"])
def test_longrope_factors_follow_max_model_len(max_len: int, length: int, tmp_path: Path) -> None:
    """transformers chooses by the length seen, so each side is compared where it agrees."""
    folder = tiny_model(tmp_path, "phi3", **LONG_PHI)
    model = open_reference(folder)
    limits = {"max_model_len": max_len, "certification": "background"}
    assert_parity(folder, model, prompts(length), "c", max_tokens=8, **limits)


def test_longrope_bits_do_not_depend_on_the_length_seen(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "phi3", **LONG_PHI)
    llm = LLM(str(folder), dtype="fp32", max_pass_tokens=64, max_num_seqs=4, determinism="off")
    (long,) = prompts(100)
    whole, part = (raw_logits(llm, ids, 16, True) for ids in (long, long[:30]))
    assert torch.equal(whole[:30], part)
    reference = reference_logits(open_reference(folder), long[:30])
    assert (part - reference).abs().max() > TOLERANCE  # the short factors


@pytest.mark.parametrize(
    ("family", "architecture"), [("gemma3", "Gemma3"), ("qwen3_5", "Qwen3_5"), ("qwen3_5_moe", "Qwen3_5Moe")]
)
def test_a_model_with_images_is_its_language_model(
    family: str, architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both spellings of the tensors' names. Layers that predict several tokens are not read, and that is noted."""
    plain = open_checkpoint(tiny_model(tmp_path / "plain", f"{family}_text", tie_word_embeddings=True))
    model = random_model(f"{family}_text", tie_word_embeddings=True)
    fields = {"model_type": family, "architectures": [f"{architecture}ForConditionalGeneration"]}
    caplog.set_level("INFO")
    outer = fields | {"text_config": model.config.to_dict(), "eos_token_id": [0, 7], "vision_config": {}}
    for number, prefix in enumerate(("model.language_model.", "language_model.model.")):
        folder = tmp_path / str(number)
        _write_renamed(folder, model, prefix, outer)
        found = open_checkpoint(folder)
        assert _without_eos(found.config) == _without_eos(plain.config)
        assert found.config.eos_token_ids[:1] == (0,)
        assert "mtp.x" in caplog.text
        for name in plain.names():
            assert torch.equal(found.tensor(name), plain.tensor(name))


def _write_renamed(folder: Path, model: Any, prefix: str, config: dict[str, Any]) -> None:
    import json

    from safetensors.torch import save_file

    folder.mkdir()
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    renamed = {name.replace("model.", prefix, 1): value.contiguous() for name, value in state.items()}
    others = {"vision_tower.x": torch.zeros(2), "mtp.x": torch.zeros(2)}
    save_file(renamed | others, folder / "model.safetensors")
    folder.joinpath("config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(folder)


def _without_eos(config: DecoderConfig) -> DecoderConfig:
    from dataclasses import replace

    return replace(config, eos_token_ids=(), torch_dtype=None)


def test_transformers_knows_every_family() -> None:
    from holdfast.models.families import FAMILIES

    assert all(hasattr(transformers, family.architecture) for family in FAMILIES.values())
