"""Tiny random thinking models in their training form, and their weights by name."""

import torch
from torch import Tensor

from holdfast.models.config import parse_config
from holdfast.thinking.config import ThinkingConfig
from holdfast.train.model import ThinkingModel, fresh_model

VOCAB = 40
END, START = 1, 2


def thinking_config(**changes: object) -> ThinkingConfig:
    fields = {
        "chunk": 4,
        "l_in": 1,
        "l_out": 2,
        "max_thought": 3,
        "start_id": START,
        "end_id": END,
        "while_answering": True,
    }
    return ThinkingConfig(**(fields | changes))  # type: ignore[arg-type]


def tiny_thinker(
    family: str = "llama", thinking: ThinkingConfig | None = None, *, seed: int = 3, **fields: object
) -> ThinkingModel:
    """Norms and scales are random too, so that none can be forgotten."""
    sizes = {
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
        **({"sliding_window": 7} if family == "mistral" else {}),
    }
    model = fresh_model(parse_config({**sizes, **fields}), thinking or thinking_config(), 128, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name or name == "c.scale":
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def named_weights(model: ThinkingModel) -> dict[str, Tensor]:
    """Copies that can be differentiated, as the checkpoint names them."""
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
