"""Tiny random thinking models in their training form, and their weights by name."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.models.config import parse_config
from holdfast.models.families import FAMILIES
from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.model.build import BuiltModel
from holdfast_thinking.model.model import ThinkingModel, fresh_model
from holdfast_thinking.model.tokenizer import build_tokenizer
from holdfast_thinking.run.export import export
from holdfast_thinking.settings import TrainingSettings
from thinking.reference import Reference

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
    """Norms and scales are random too, so that a forgotten one shows."""
    sizes = _sizes(family)
    model = fresh_model(parse_config({**sizes, **fields}), thinking or thinking_config(), 128, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name or name == "c.scale":
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def _sizes(family: str) -> dict[str, Any]:
    return {
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


def named_weights(model: ThinkingModel) -> dict[str, Tensor]:
    """Differentiable copies, by checkpoint name."""
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def thinker_folder(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 3,
    dtype: Literal["float32", "bfloat16"] = "float32",
    sizes: Mapping[str, int] | None = None,
    **thinking: object,
) -> Path:
    """A tiny random thinking model on disk; about half of its chunks have the trivial thought.

    T's first token is some favourites of its own: the most frequent one is made the end of a thought.
    """
    tokenizer = build_tokenizer(["heads tails the coin is flips"])
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    config = thinking_config(**{"max_thought": 3, **thinking})
    sizes = {"vocab_size": vocab, "max_position_embeddings": 512, **(sizes or {})}
    model = tiny_thinker(family, config, seed=seed, **sizes)
    fields = {
        **_sizes(family),
        **sizes,
        "eos_token_id": 0,
        "architectures": [FAMILIES[family].architecture],
    }
    reference = Reference(model.config, config, {n: p.detach() for n, p in model.named_parameters()})
    rng = random.Random(seed)
    firsts = Counter(
        thought[0]
        for _ in range(12)
        for thought in reference.read(
            reference.start(), [rng.randrange(3, vocab) for _ in range(16)]
        ).thoughts
        if thought
    )
    model.thinking = replace(config, end_id=firsts.most_common(1)[0][0])
    export(BuiltModel(model, tokenizer, fields, 0), TrainingSettings(dtype=dtype), folder)
    return folder
