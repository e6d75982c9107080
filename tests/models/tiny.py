"""Tiny random transformers models and configurations of every family."""

from typing import Any

import torch
import transformers

CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
SIZES = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def tiny_config(family: str, **changes: Any) -> Any:
    """A transformers configuration."""
    return getattr(transformers, CLASSES[family] + "Config")(**(SIZES | changes))


def tiny_model(family: str, **changes: Any) -> Any:
    """A transformers model with random weights, biases and norms included."""
    config = tiny_config(family, **changes)
    generator = torch.Generator().manual_seed(7)
    model = getattr(transformers, CLASSES[family] + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model
