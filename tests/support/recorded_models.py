"""Tiny models whose weights are the same numbers everywhere: no library draws or rounds them.

`answers.json` beside `engine/test_without_torch.py` has their configurations and the bits of their answers.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from holdfast.models.checkpoint import expected_tensors
from holdfast.models.config import parse_config
from support.tiny import write_tokenizer

_STD, _STD_OF_FOUR = 0.2, 37837.0  # of a sum of four numbers of 16 bits


def recorded_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model with this configuration, as in its config.json."""
    folder.mkdir(parents=True)
    folder.joinpath("config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = expected_tensors(parse_config(config))
    save_file({name: _weight(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def _weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers that are nearly normal, around one in a norm."""
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
    sums = bits.astype("<u8").view("<u2").reshape(-1, 4).sum(1, dtype=np.int64) - 2 * 65535
    noise = (sums.astype(np.float32) / np.float32(_STD_OF_FOUR) * np.float32(_STD)).reshape(shape)
    return noise + np.float32(1) if "norm" in name else noise
