"""A checkpoint of seeded random weights, and the configuration of a tiny model, for benchmarks and tests.

With `twins`, the rows of the head come in pairs that differ by 1e-7: each token is nearly as likely
as its twin, so the smallest difference in the bits of a pass becomes another token.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.models.checkpoint import RawTensor, expected_tensors
from holdfast.models.config import DecoderConfig, parse_config

_TWIN = 1e-7
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
    """Normally distributed weights; norms are ones. On the CPU the same seed gives the same weights
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
        device: torch.device | str = "cpu",
    ) -> None:
        self._config = config
        self._seed = seed
        self._deviation = deviation
        self._twins = twins
        self._device = torch.device(device)
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

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        shape, device = self._shapes[name], self._device
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(self._seed ^ zlib.crc32(name.encode()))
        if device.type == "cpu":
            tensor = torch.randn(shape, generator=generator, dtype=torch.float32) * self._deviation
        else:
            tensor = torch.empty(shape, dtype=dtype, device=device)
            tensor.normal_(0.0, self._deviation, generator=generator)
        if self._twins and name == "lm_head.weight":
            tensor[1::2] = tensor[: len(tensor) // 2 * 2 : 2] * (1 + _TWIN)
        return tensor.to(dtype) if dtype is not None else tensor

    def raw(self, name: str) -> RawTensor:
        """Return what decides the numbers: nothing is stored."""
        inputs = [self._shapes[name], self._seed, self._deviation, self._twins]
        if self._device.type != "cpu":
            inputs.append(self._device.type)
        return RawTensor("RANDOM", memoryview(json.dumps(inputs).encode()))

    def release(self) -> None: ...
