"""Configurations of published models, by name: for benchmarks with random weights, and to certify
GEMMs without weights."""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ModelNotFound
from holdfast.models.config import DecoderConfig, parse_config

_LLAMA_31: Mapping[str, Any] = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": {
        **_LLAMA_31,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3.1-70b": {
        **_LLAMA_31,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "vocab_size": 201088,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "eos_token_id": 200002,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 50304,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 50279,
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}

SHAPE_NAMES = tuple(_PUBLISHED)


def published_config(name: str) -> DecoderConfig:
    """Return the configuration of a published model, such as llama-3.1-8b, in bf16."""
    if name not in _PUBLISHED:
        raise ModelNotFound(f"there is no shape called {name!r}; choose one of {', '.join(SHAPE_NAMES)}")
    return parse_config({**_PUBLISHED[name], "torch_dtype": "bfloat16"})


def gemm_shapes(config: DecoderConfig) -> list[tuple[str, int, int, bool]]:
    """List every kind of GEMM: its name, outputs N, inputs K, and whether it has a bias."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sparse = [config.has_experts(layer) for layer in range(config.num_layers)]
    mlps = [] if all(sparse) else [("", inner)]
    mlps += [("expert_", config.expert_size)] if any(sparse) else []
    mlps += [("shared_", config.shared_expert_size)] if any(sparse) and config.shared_expert_size else []
    gates = [("router", config.num_experts, hidden, config.router_bias)] if any(sparse) else []
    gates += [("shared_gate", 1, hidden, False)] if any(sparse) and config.shared_expert_size else []
    return [
        ("qkv", queries + 2 * keys, hidden, config.qkv_bias),
        ("o", hidden, queries, config.o_bias),
        *gates,
        *(
            part
            for name, size in mlps
            for part in (
                (f"{name}gate_up", 2 * size, hidden, config.mlp_bias),
                (f"{name}down", hidden, size, config.mlp_bias),
            )
        ),
        ("head", config.vocab_size, hidden, False),
    ]
