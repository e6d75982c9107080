"""The tensors of `thinking.safetensors`, checked against the configuration."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import BadWeights
from holdfast.models.checkpoint import require_tensors
from holdfast.models.config import DecoderConfig
from holdfast.thinking.config import WEIGHTS_FILE, ThinkingConfig, thinking_tensors


def read_thinking_weights(folder: Path, config: ThinkingConfig, decoder: DecoderConfig) -> dict[str, Tensor]:
    """Read the tensors of T and C, as stored, onto the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS_FILE
    try:
        held: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadWeights(f"{path.name} is not a complete safetensors file: {error}") from error
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

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._held[name].to(dtype or self._held[name].dtype)


def thinking_parts(
    folder: Path, config: ThinkingConfig, decoder: DecoderConfig
) -> dict[str, int | bool | str]:
    """Return the fingerprint's parts: the configuration and a digest of T's and C's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(read_thinking_weights(folder, config, decoder).items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return {**config.to_json(), "weights": digest.hexdigest()}
