"""Configurations of published models, by name: for benchmarks with random weights, and to certify
GEMMs without weights. `published.json` holds what their config.json says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ModelNotFound
from holdfast.models.config import DecoderConfig, parse_config

_PUBLISHED: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("published.json").read_text(encoding="utf-8")
)
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
    is_dense = any(config.has_mlp(layer) and not each for layer, each in enumerate(sparse))
    mlps = [("", inner)] if is_dense else []
    mlps += [("expert_", config.expert_size)] if any(sparse) else []
    mlps += [("shared_", config.shared_expert_size)] if any(sparse) and config.shared_expert_size else []
    gates = [("router", config.num_experts, hidden, config.router_bias)] if any(sparse) else []
    has_gate = config.shared_expert_size and config.shared_expert_gate
    gates += [("shared_gate", 1, hidden, False)] if any(sparse) and has_gate else []
    gated = queries if config.gated_attention else 0
    mixer = config.mixer if config.num_recurrent_layers else None
    mixers = (
        []
        if mixer is None
        else [
            ("mixer_in", mixer.in_width, hidden, False),
            ("mixer_out", hidden, mixer.out_width, False),
        ]
    )
    return [
        ("qkv", queries + 2 * keys + gated, hidden, config.qkv_bias),
        ("o", hidden, queries, config.o_bias),
        *mixers,
        *gates,
        *(
            part
            for name, size in mlps
            for part in (
                (f"{name}gate_up", (1 + config.num_gates) * size, hidden, config.mlp_bias),
                (f"{name}down", hidden, size, config.mlp_bias),
            )
        ),
        ("head", config.vocab_size, hidden, False),
    ]
