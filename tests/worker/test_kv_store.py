"""The KV store: its size in bytes, its budget, its initial content."""

import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import tiny_config
from holdfast.numerics.backends.torch.backend import TorchBackend
from holdfast.worker.kv_store import KVStore, num_pages_in, page_bytes


@pytest.fixture
def config() -> DecoderConfig:
    return tiny_config(num_hidden_layers=3)


def test_page_bytes_match_the_tensors(config: DecoderConfig) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        store = KVStore(5, config, TorchBackend(dtype))
        total = sum(part.nbytes for layer in store.layers for part in (layer.keys, layer.values))
        assert total == 5 * page_bytes(config, dtype, 16)
        assert page_bytes(config, dtype, 16, extra=9) == page_bytes(config, dtype, 16) + 16 * 9
        assert len(store.layers) == 3


def test_budget_is_never_exceeded(config: DecoderConfig) -> None:
    one = page_bytes(config, torch.float32, 16)
    assert num_pages_in(one, config, torch.float32, 16) == 1
    assert num_pages_in(7 * one + one - 1, config, torch.float32, 16) == 7
    with pytest.raises(ConfigError, match=r"does not hold one page of 16 positions.*raise kv_memory"):
        num_pages_in(one - 1, config, torch.float32, 16)


def test_store_larger_than_memory_is_a_config_error(config: DecoderConfig) -> None:
    with pytest.raises(ConfigError, match="cannot be allocated; lower kv_memory"):
        KVStore(1 << 45, config, TorchBackend(torch.float32))
