"""`EngineConfig` and `LLM`: other names of a setting, and the types a server sends."""

import warnings
from pathlib import Path

import msgspec
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.engine.llm import LLM
from holdfast.errors import ConfigError, ModelError


def test_old_name_of_max_pass_tokens_warns_at_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match="max_pass_rows is now called max_pass_tokens") as caught:
        config = EngineConfig(max_pass_rows=640)  # type: ignore[call-arg]
    assert config == EngineConfig(max_pass_tokens=640)
    assert caught[0].filename == __file__


def test_llm_accepts_the_old_name_with_a_warning(tmp_path: Path) -> None:
    with (
        pytest.raises(ModelError),
        pytest.warns(DeprecationWarning, match="max_pass_tokens") as caught,
    ):
        LLM(str(tmp_path), max_pass_rows=640)  # type: ignore[call-arg]
    assert caught[0].filename == __file__


def test_vllm_name_of_max_pass_tokens_is_accepted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = EngineConfig(max_num_batched_tokens=640)  # type: ignore[call-arg]
    assert config == EngineConfig(max_pass_tokens=640)


def test_two_names_of_max_pass_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same setting"):
        EngineConfig(max_num_batched_tokens=640, max_pass_tokens=640)  # type: ignore[call-arg]


def test_only_the_model_is_positional() -> None:
    with pytest.raises(TypeError):
        EngineConfig("model", "cpu")  # type: ignore[misc]


def test_config_round_trips_through_msgpack() -> None:
    config = EngineConfig(
        "model", kv_memory="1MiB", spot_check_rate=0.5, prefix_cache=False, chat_template="x"
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config
