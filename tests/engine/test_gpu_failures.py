"""A GPU that is too old, a kernel that does not compile: a clear message or the CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.engine import builder, gpu_failures
from holdfast.engine.config import EngineConfig
from holdfast.engine.gpu_failures import explain_kernel_failure
from holdfast.errors import ConfigError
from holdfast.worker import device as devices

GPU = torch.device("cuda", 0)


class PTXASError(Exception):
    __module__ = "triton.runtime.errors"


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_capability=lambda device: (7, 5),
        get_device_name=lambda device: "Tesla T4",
    )
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(devices, "has_triton", lambda: True)


def test_old_gpu_is_named_when_it_is_asked_for(old_gpu: None) -> None:
    with pytest.raises(
        ConfigError, match=r"Tesla T4 has compute capability 7\.5.*8\.0 or newer; use device cpu"
    ):
        devices.choose_device("cuda")


def test_auto_takes_the_cpu_in_place_of_an_old_gpu(old_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    assert devices.choose_device("auto") == torch.device("cpu")
    assert "Tesla T4" in caplog.text


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PTXASError("ptxas died"), "could not be compiled"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "needs a C compiler"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), "update the driver"),
        (RuntimeError("The CUDA driver version is insufficient"), "update the driver"),
    ],
    ids=["ptxas", "no compiler", "no kernel image", "driver"],
)
def test_kernel_failure_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    monkeypatch.setattr(gpu_failures, "device_name", lambda device: "H200")
    message = explain_kernel_failure(error, GPU)
    assert message is not None and message.startswith("H200 cannot run") and advice in message
    assert str(error) in message and "use device cpu" in message


def test_other_errors_and_cpu_errors_are_not_explained() -> None:
    assert explain_kernel_failure(ValueError("a bug"), GPU) is None
    assert explain_kernel_failure(PTXASError("ptxas died"), torch.device("cpu")) is None


def test_failure_to_build_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tiny_llama: Any) -> None:
    def fail(*_: Any) -> Any:
        raise PTXASError("ptxas died")

    monkeypatch.setattr(builder, "_open_backend", fail)
    monkeypatch.setattr(builder, "explain_kernel_failure", lambda error, device: f"explained: {error}")
    with pytest.raises(ConfigError, match="explained: ptxas died"):
        builder.build(EngineConfig(str(tiny_llama)))
