"""A GPU that cannot be there is refused without torch; one that may be there is left to torch."""

import pytest

from holdfast.errors import ConfigError
from holdfast.worker import device
from holdfast.worker.device import require_gpu


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a driver, a CUDA build of torch and triton, but for what is changed."""
    monkeypatch.setattr(device, "_ROCM", tmp_path / "kfd")
    monkeypatch.setattr(device, "_has_driver", lambda: True)
    monkeypatch.setattr(device, "_torch_is_cpu_only", lambda: False)
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def test_possible_gpu_is_accepted(machine):
    for wanted in ("auto", "cpu", "cuda", "cuda:1"):
        require_gpu(wanted, "auto")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_has_driver", lambda: False, "no NVIDIA driver"),
        ("_torch_is_cpu_only", lambda: True, "a build without CUDA"),
        ("find_spec", lambda name: None if name == "triton" else object(), "needs triton"),
        ("find_spec", lambda name: None, "torch is not installed"),
    ],
)
def test_impossible_gpu_is_refused(machine, name, value, reason):
    machine.setattr(device, name, value)
    require_gpu("auto", "auto")
    with pytest.raises(ConfigError, match=reason):
        require_gpu("cuda:0", "auto")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_refused(machine, hidden):
    machine.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        require_gpu("cuda", "auto")
    machine.setenv("CUDA_VISIBLE_DEVICES", "1")
    require_gpu("cuda", "auto")


def test_rocm_is_left_to_torch(machine, tmp_path):
    (tmp_path / "kfd").touch()
    machine.setattr(device, "_has_driver", lambda: False)
    require_gpu("cuda", "auto")


@pytest.mark.parametrize(
    ("content", "is_cpu_only"),
    [
        ("__version__ = '2.11.0'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = '12.8'\n", False),
        ("", False),
    ],
)
def test_version_file_of_torch(monkeypatch, tmp_path, content, is_cpu_only):
    tmp_path.joinpath("version.py").write_text(content)
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(device, "find_spec", lambda name: spec)
    assert device._torch_is_cpu_only() is is_cpu_only


def test_version_file_agrees_with_the_installed_torch():
    import torch

    assert device._torch_is_cpu_only() is (torch.version.cuda is None)
