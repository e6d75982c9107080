"""Tiny models whose weights are the same numbers everywhere: no library draws or rounds them.

`engine/test_without_torch.json` has their configurations and the bits of their answers.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from holdfast.models.checkpoint import expected_tensors
from holdfast.models.config import parse_config
from holdfast.models.dummy import noise
from support.tiny import write_tokenizer

_DEVIATION = 0.2


def recorded_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model with this configuration, as in its config.json."""
    folder.mkdir(parents=True)
    folder.joinpath("config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = expected_tensors(parse_config(config))
    save_file({name: _weight(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def _weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    weight = noise(shape, zlib.crc32(name.encode())) * np.float32(_DEVIATION)
    return weight + np.float32(1) if "norm" in name else weight
