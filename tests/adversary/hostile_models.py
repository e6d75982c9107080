"""Hostile models: weights under which operations agree that do not, underflow, overflow or tie.

A model is the tiny one, in a shape of choice, with some of its weights replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.checkpoint import RawTensor
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.families import FAMILIES, FamilyName
from holdfast.numerics.cache_dir import cache_dir
from holdfast.numerics.recipe import KernelBackend
from support.tiny import FAMILY_SIZES, LONG_PHI

Edit = Callable[[str, Tensor], Tensor]  # (name, weights) -> weights

NAN_TOKENS = (7, 8)  # tokens whose embeddings are not numbers
_KERNELS = "kernels"


class EditedCheckpoint(DummyCheckpoint):
    """Random weights, some of them replaced, as a file would hold them.

    They are made at once, before an attack changes a setting. Their digest is that of the replaced
    ones.
    """

    def __init__(self, edit: Edit, config: DecoderConfig, **options: Any) -> None:
        super().__init__(config, **options)
        drawn = {name: np.asarray(super(EditedCheckpoint, self).tensor(name)) for name in self.names()}
        self._edited = {name: edit(name, torch.from_numpy(weights)) for name, weights in drawn.items()}

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._edited[name] if dtype is None else self._edited[name].to(dtype)

    def raw(self, name: str) -> RawTensor:
        return RawTensor("F32", memoryview(self._edited[name].numpy().tobytes()))


def unchanged(name: str, weights: Tensor) -> Tensor:
    return weights


def zero_projections(name: str, weights: Tensor) -> Tensor:
    """Every product is zero, so every batch size seems to agree."""
    return weights.zero_() if name.endswith("proj.weight") else weights


def zero_layers(*layers: int) -> Edit:
    """Layers without effect, as layers that are initialised to zero or pruned."""

    def edit(name: str, weights: Tensor) -> Tensor:
        in_layer = any(f".layers.{layer}." in name for layer in layers)
        return weights.zero_() if in_layer and name.endswith("proj.weight") else weights

    return edit


def pruned(name: str, weights: Tensor) -> Tensor:
    """Nine of ten weights are zero, and every other output row."""
    if name.endswith("proj.weight"):
        weights[weights.abs() < weights.abs().flatten().quantile(0.9)] = 0.0
        weights[::2] = 0.0
    return weights


def subnormal(name: str, weights: Tensor) -> Tensor:
    """Values below the smallest normal number, scaled back after attention.

    Where they are flushed to zero, attention has no effect and every logprob is another.
    """
    if name.endswith("v_proj.weight"):
        return weights * 1e-39
    return weights * 1e38 if name.endswith("o_proj.weight") else weights


def huge(name: str, weights: Tensor) -> Tensor:
    """Activations that overflow in fp16 and have few correct bits in any dtype."""
    return weights * 64.0 if name.endswith("proj.weight") else weights


def nan_rows(name: str, weights: Tensor) -> Tensor:
    """Some tokens' embeddings are not numbers."""
    if name == "model.embed_tokens.weight":
        weights[NAN_TOKENS[0]] = float("nan")
        weights[NAN_TOKENS[1]] = float("inf")
    return weights


HOSTILE_WEIGHTS: dict[str, Edit] = {
    "zero projections": zero_projections,
    "zero layers 0 and 2": zero_layers(0, 2),
    "pruned weights": pruned,
    "subnormal weights": subnormal,
    "huge weights": huge,
}

# Those that differ from Llama by more than biases, norms of q and k, and windows.
OTHER_FAMILIES: dict[FamilyName, dict[str, Any]] = {
    "phi3": LONG_PHI,
    "olmo2": {},
    **{name: FAMILY_SIZES[name] for name in ("granite", "smollm3", "gemma2", "gemma3_text", "cohere2")},
    **{name: FAMILY_SIZES[name] for name in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")},
    "olmoe": FAMILY_SIZES["olmoe"] | {"clip_qkv": 2.0},
}
HOSTILE_SHAPES: dict[str, dict[str, Any]] = {
    **{
        name: {"architectures": [FAMILIES[name].architecture], "model_type": name, **fields}
        for name, fields in OTHER_FAMILIES.items()
    },
    "sliding window": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 17,
    },
    "biases, windows in some layers": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 31,
        "max_window_layers": 1,
    },
    "norms of queries and keys": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
    },
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "yarn rope": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    },
    "tied embeddings": {"tie_word_embeddings": True},
    "odd sizes": {
        "hidden_size": 72,
        "intermediate_size": 150,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
    },
}


@dataclass(frozen=True)
class Target:
    """The kind of engine that is attacked."""

    kernels: KernelBackend
    dtype: str
    num_threads: int | None = None
    shape: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # fields of EngineConfig

    @property
    def name(self) -> str:
        return f"{self.kernels} {self.dtype}"

    def weights(self, edit: Edit = unchanged, *, near_ties: bool = False, seed: int = 0) -> EditedCheckpoint:
        return EditedCheckpoint(edit, tiny_config(**self.shape), seed=seed, deviation=0.25, twins=near_ties)

    def open(self, weights: EditedCheckpoint | None = None, **limits: Any) -> Engine:
        """An engine for these weights, or for ordinary ones."""
        usual: dict[str, Any] = {"max_num_seqs": 8, "max_pass_tokens": 64, "kv_memory": "8MiB"}
        config = EngineConfig(
            certification="startup",
            kernels=self.kernels,
            dtype=self.dtype,
            num_threads=self.num_threads,
            **(usual | self.limits | limits),
        )
        weights = weights or self.weights()
        return assemble(OpenedModel(config, weights.config), weights)


@contextmanager
def fresh_certificates() -> Iterator[None]:
    """A cache folder without certificates, for engines that must make their own.

    What an attack stores there is removed. Compiled kernels stay those of the usual folder.
    """
    kernels = cache_dir() / _KERNELS
    kernels.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="holdfast-adversary-") as folder:
        Path(folder, _KERNELS).symlink_to(kernels.resolve())
        with patch.dict("os.environ", HOLDFAST_CACHE_DIR=folder):
            yield
