"""`EngineConfig` and `LLM`: bad settings, and the types a server sends."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from holdfast.core.request import RequestDefaults
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig, parse_bytes
from holdfast.engine.llm.llm import LLM
from holdfast.errors import ConfigError


def test_only_the_model_is_positional() -> None:
    with pytest.raises(TypeError):
        EngineConfig("model", "cpu")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu_memory_utilization", ": use kv_memory, such as 20GiB"),
        ("tensor_parallel_size", ": Holdfast uses one GPU"),
        ("max_model_leng", ": did you mean max_model_len?"),
        ("xyz", ""),
    ],
)
def test_unknown_option_is_answered_with_ours(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"^LLM has no option '{name}'{re.escape(hint)}"):
        LLM("nowhere", **{name: 1})  # type: ignore[arg-type]


def test_paths_and_torch_objects_are_read() -> None:
    given = EngineConfig(Path("a/model"), device=torch.device("cuda", 1), dtype=torch.bfloat16)  # type: ignore[arg-type]
    assert given == EngineConfig("a/model", device="cuda:1", dtype="bfloat16")


def test_config_round_trips_through_msgpack() -> None:
    config = EngineConfig(
        "model", kv_memory="1MiB", spot_check_rate=0.5, prefix_cache=False, chat_template="x"
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": 5}, "model must be a path or a name, not int"),
        ({"dtype": "int3"}, "dtype"),
        ({"determinism": "maybe"}, "determinism"),
        ({"deterministic": "yes"}, "deterministic must be true or false"),
        ({"deterministic": True, "determinism": "off"}, "needs determinism auto or verify"),
        ({"default_seed": "any"}, "default_seed must be random or a number"),
        ({"default_seed": -1}, "default_seed"),
        ({"default_seed": 1 << 64}, "default_seed"),
        ({"kernels": "magic"}, "kernels"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_pass_tokens": 0}, "max_pass_tokens"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"num_threads": 0}, "num_threads"),
        ({"kv_memory": "lots"}, "kv_memory"),
        ({"kv_memory": 0}, "kv_memory"),
        ({"kv_memory": "9" * 40 + "GB"}, "kv_memory"),
        ({"spot_check_rate": 2}, "spot_check_rate"),
    ],
    ids=str,
)
def test_bad_engine_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**config)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("1", 1),
        ("2KiB", 2048),
        ("1.5GB", 1_500_000_000),
        ("7b", 7),
    ],
)
def test_parse_bytes(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


def test_key_in_place_of_its_file_is_not_shown() -> None:
    secret = "MC4CAQAwBQYDK2VwBCIEIMk"
    with pytest.raises(ConfigError, match="not the key itself") as caught:
        EngineConfig(receipt_key=f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "deterministic", "seed"),
    [
        ({}, False, None),
        ({"deterministic": True}, True, 0),
        ({"deterministic": True, "default_seed": "random"}, True, None),
        ({"deterministic": True, "default_seed": "7"}, True, 7),
        ({"default_seed": (1 << 64) - 1}, False, (1 << 64) - 1),
    ],
)
def test_request_defaults(config: dict[str, Any], deterministic: bool, seed: int | None) -> None:
    assert EngineConfig(**config).request_defaults == RequestDefaults(deterministic, seed)


def test_request_overrides_the_defaults() -> None:
    defaults = RequestDefaults(deterministic=True, seed=3)
    assert defaults.decide(SamplingParams(), 1, 8).deterministic is True
    assert defaults.decide(SamplingParams(deterministic=False), 1, 8).deterministic is False
    assert defaults.seed_of(SamplingParams()) == 3 and defaults.seed_of(SamplingParams(seed=0)) == 0
    random = RequestDefaults(deterministic=True)
    assert random.seed_of(SamplingParams(temperature=0)) == 0
    assert len({random.seed_of(SamplingParams()) for _ in range(8)}) == 8
