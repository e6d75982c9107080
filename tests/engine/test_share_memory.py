"""The memory of several engines on one device."""

from pathlib import Path

import pytest

from holdfast.engine.config import EngineConfig, default_gpu_kv_bytes, default_kv_bytes, main_memory_bytes
from holdfast.engine.start import share_memory as module
from holdfast.engine.start.builder import build
from holdfast.engine.start.preflight import OpenedModel, open_model
from holdfast.engine.start.share_memory import share_memory
from holdfast.errors import ConfigError

GIB = 1 << 30


@pytest.fixture
def opened(tiny_llama: Path) -> OpenedModel:
    return open_model(EngineConfig(str(tiny_llama), device="cpu"))


def put_gpu(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(module, "compute_capability", lambda device, kernels: (9, 0))
    monkeypatch.setattr(module, "unused_gpu_bytes", lambda device: free)


def test_cpu_shares_a_quarter_of_the_memory(opened: OpenedModel) -> None:
    configs, plan = share_memory([opened] * 2)
    share = min(default_kv_bytes(), main_memory_bytes() // 8)
    assert [one.kv_share for one in configs] == [share, share]
    assert f"{2 * share / GIB:.1f} GiB of KV, {share / GIB:.1f} GiB each" in plan
    many, _ = share_memory([opened] * 100)
    assert sum(one.kv_share or 0 for one in many) <= main_memory_bytes() // 4


def test_gpu_shares_what_the_weights_leave(opened: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu(monkeypatch, 80 * GIB)
    configs, plan = share_memory([opened] * 2)
    weights = opened.files.num_weight_bytes
    assert (
        weights == (opened.checkpoint.path / "model.safetensors").stat().st_size if opened.checkpoint else 0
    )
    share = default_gpu_kv_bytes((80 * GIB - 2 * weights) // 2)
    assert [one.kv_share for one in configs] == [share, share]
    assert "of the 80.0 GiB that the GPU has free" in plan


def test_what_does_not_fit_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(EngineConfig(str(tiny_llama), device="cpu", kv_memory=main_memory_bytes() // 2 + 1))
    share_memory([opened])
    with pytest.raises(ConfigError, match="serve fewer models, or lower kv_memory"):
        share_memory([opened] * 2)
    put_gpu(monkeypatch, 2 * opened.files.num_weight_bytes)
    with pytest.raises(ConfigError, match=r"than the 0\.0 GiB that the GPU has free"):
        share_memory([opened] * 2)


def test_share_limits_the_pages_of_an_engine(tiny_llama: Path) -> None:
    config = EngineConfig(str(tiny_llama), device="cpu", determinism="off", kv_share=1 << 16)
    few = build(config).scheduler.pool.num_pages
    assert few < 64
