"""Settings that a caller makes around our work: same bits, and the caller's settings stay its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from adversary.hostile_models import Target
from adversary.settings import SETTINGS, HostileSetting, attack_setting
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, assert_held, small_target
from support.shape_dependent_gemm import use_shape_dependent_gemm

BY_NAME = {setting.name: setting for setting in SETTINGS}
# oneDNN reports that it falls back to another kernel for bf16.
FALLBACK = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed", "ignore:TF32 acceleration")


@contextmanager
def _precision_and_threads() -> Iterator[None]:
    with BY_NAME["matmul precision"].use(), BY_NAME["number of threads"].use():
        yield


def test_settings_that_choose_the_order_of_summation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the fp32 precision does with oneDNN, and the number of threads in long sums."""
    use_shape_dependent_gemm(monkeypatch, by_settings=True)
    both = HostileSetting("precision and threads", _precision_and_threads, torch.get_num_threads)
    assert_held(attack_setting(small_target("torch", num_hidden_layers=1), both, FEW))


@FALLBACK
@pytest.mark.parametrize(
    ("kernels", "name"),
    [
        ("torch", "autocast"),
        pytest.param("torch", "flushed denormals", marks=pytest.mark.long),
        ("c", "flushed denormals"),
        ("c", "rounding mode"),
        pytest.param("c", "default device", marks=pytest.mark.long),
    ],
)
def test_settings_of_a_thread(kernels: KernelBackend, name: str) -> None:
    assert_held(attack_setting(small_target(kernels, num_hidden_layers=1), BY_NAME[name], FEW))


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize(
    ("kernels", "dtype"), [("c", "fp32"), ("c", "bf16"), ("torch", "fp32"), ("torch", "bf16")]
)
def test_every_setting(kernels: KernelBackend, dtype: str, setting: HostileSetting) -> None:
    assert_held(attack_setting(Target(kernels, dtype), setting))


@pytest.mark.long
def test_number_of_threads_in_a_long_sum() -> None:
    target = Target("torch", "fp32", shape={"intermediate_size": 4096})
    assert_held(attack_setting(target, BY_NAME["number of threads"], FEW))
