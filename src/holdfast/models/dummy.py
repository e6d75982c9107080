"""A checkpoint of seeded random weights, and the configuration of a tiny model, for benchmarks and tests.

With `twins`, the rows of the head come in pairs that differ by 1e-7: each token is nearly as likely
as its twin, so the smallest difference in the bits of a pass becomes another token.
"""

import json
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.models.checkpoint import RawTensor, expected_tensors
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.numerics.arrays import DType, Tensor, host, rounded

_TWIN = 1e-7
_DRAWN_AT_ONCE = 1 << 20
_DEVIATION_OF_SUM = 37837.0  # of four integers of 16 bits
TINY_VOCAB = 512
TINY_EOS = 300  # above the byte tokens, so that every byte can be generated


def tiny_fields(**changes: Any) -> dict[str, Any]:
    """Return the config.json of a Llama with about 200 thousand parameters and a context of 1024 tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": TINY_VOCAB,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": TINY_EOS,
        **changes,
    }


def tiny_config(**changes: Any) -> DecoderConfig:
    """Return the same, read."""
    return parse_config(tiny_fields(**changes))


class DummyCheckpoint:
    """Nearly normally distributed weights; norms are ones. On the CPU the same seed gives the same weights
    everywhere.

    On another device the weights are made there, in the requested dtype: billions in seconds, with
    bits of that device.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        seed: int = 0,
        deviation: float = 0.02,
        twins: bool = False,
        device: object = "cpu",
    ) -> None:
        """device: a device or its name."""
        self._config = config
        self._seed = seed
        self._deviation = deviation
        self._twins = twins
        self._device = str(device)
        self._shapes = expected_tensors(config)

    @property
    def config(self) -> DecoderConfig:
        return self._config

    @property
    def path(self) -> Path:
        return Path("dummy")

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str, dtype: DType | None = None) -> Tensor:
        shape, seed = self._shapes[name], self._seed ^ zlib.crc32(name.encode())
        is_norm = name.endswith("norm.weight")
        if self._device == "cpu":
            drawn = (
                np.ones(shape, np.float32) if is_norm else noise(shape, seed) * np.float32(self._deviation)
            )
            tensor = host(drawn)
        else:
            tensor = self._on_device(shape, dtype, None if is_norm else seed)
        if self._twins and name == "lm_head.weight":
            tensor[1::2] = tensor[: len(tensor) // 2 * 2 : 2] * (1 + _TWIN)
        return rounded(tensor, dtype) if self._device == "cpu" else tensor

    def _on_device(self, shape: tuple[int, ...], dtype: DType | None, seed: int | None) -> Tensor:
        """Return normally distributed numbers; ones without a seed."""
        import torch

        if seed is None:
            return torch.ones(shape, dtype=dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(seed)
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        return tensor.normal_(0.0, self._deviation, generator=generator)

    def raw(self, name: str) -> RawTensor:
        """Return what decides the numbers: nothing is stored."""
        inputs = [self._shapes[name], self._seed, self._deviation, self._twins]
        if self._device != "cpu":
            inputs.append(self._device.partition(":")[0])
        kind = "NOISE" if self._device == "cpu" else "RANDOM"
        return RawTensor(kind, memoryview(json.dumps(inputs).encode()))

    def release(self) -> None: ...


def noise(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Return sums of four random integers of 16 bits, with a deviation of one. No library rounds them."""
    drawn = np.empty(prod(shape), np.float32)
    words = np.random.PCG64(seed)
    for start in range(0, len(drawn), _DRAWN_AT_ONCE):
        part = drawn[start : start + _DRAWN_AT_ONCE]
        fours = np.asarray(words.random_raw(len(part)), "<u8").view("<u2").reshape(-1, 4)
        part[:] = fours.sum(1, dtype=np.int64) - 2 * 65535
    drawn /= np.float32(_DEVIATION_OF_SUM)
    return drawn.reshape(shape)
