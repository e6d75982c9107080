"""The tensors of `thinking.safetensors`, checked against the configuration."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from holdfast.models.checkpoint import require_tensors
from holdfast.models.config import DecoderConfig
from holdfast.models.safetensors import read_safetensors
from holdfast.numerics.arrays import Tensor, dtype_name
from holdfast.thinking.config import WEIGHTS_FILE, ThinkingConfig, thinking_tensors


def read_thinking_weights(folder: Path, config: ThinkingConfig, decoder: DecoderConfig) -> dict[str, Tensor]:
    """Read the tensors of T and C, as stored, onto the CPU."""
    path = folder / WEIGHTS_FILE
    held = read_safetensors(path)
    expected = thinking_tensors(config, decoder)
    require_tensors(expected, lambda name: tuple(held[name].shape) if name in held else None, str(path))
    return {name: held[name] for name in expected}


class ThinkingTensors:
    """The tensors of T and C, in the interface of a checkpoint."""

    def __init__(self, held: Mapping[str, Tensor]) -> None:
        self._held = held

    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._held[name].shape)

    def tensor(self, name: str) -> Tensor:
        return self._held[name]


def thinking_parts(
    folder: Path, config: ThinkingConfig, decoder: DecoderConfig
) -> dict[str, int | bool | str]:
    """Return the fingerprint's parts: the configuration and a digest of T's and C's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(read_thinking_weights(folder, config, decoder).items()):
        digest.update(json.dumps([name, f"torch.{dtype_name(tensor.dtype)}", list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    return {**config.to_json(), "weights": digest.hexdigest()}
