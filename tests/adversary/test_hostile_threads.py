"""Engines that are built in one thread and driven from others; many submitters; a forked child."""

import os
import signal

import pytest

from adversary.hostile_models import Target
from adversary.questions import answer
from adversary.settings import HostileSetting
from adversary.threads import (
    attack_built_elsewhere,
    attack_side_by_side,
    attack_submitters,
    attack_toggled,
    attack_turns,
    thread_settings,
)
from holdfast.bench.stress import result_bits
from holdfast.errors import EngineStopped
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, assert_held, small_target

FALLBACK = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed", "ignore:TF32 acceleration")


@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engine_built_in_another_thread(kernels: KernelBackend) -> None:
    """Subnormal numbers are flushed in the thread that asks, not in the one that builds."""
    setting = next(one for one in thread_settings() if one.name == "flushed denormals")
    assert_held(attack_built_elsewhere(small_target(kernels, num_hidden_layers=1), setting, FEW))


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("setting", thread_settings(), ids=lambda setting: setting.name)
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engine_built_in_another_thread_long(kernels: KernelBackend, setting: HostileSetting) -> None:
    assert_held(attack_built_elsewhere(Target(kernels, "bf16"), setting))


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_threads_in_turn(kernels: KernelBackend) -> None:
    assert_held(attack_turns(small_target(kernels), 1))


@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_many_submitters(kernels: KernelBackend) -> None:
    assert_held(attack_submitters(small_target(kernels), 30))


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_engines_side_by_side(kernels: KernelBackend) -> None:
    assert_held(attack_side_by_side(Target(kernels, "fp32"), 6))


@pytest.mark.long
@FALLBACK
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_settings_changed_by_another_thread(kernels: KernelBackend) -> None:
    """The same bits, or a refusal that names the setting."""
    evidence = attack_toggled(Target(kernels, "fp32"), 6)
    assert evidence.result().verdict == "held", evidence.result().remark
    assert all("ConfigError" in text for text in evidence.refusals)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_refused_instead_of_waiting_for_ever() -> None:
    engine = small_target("c", num_hidden_layers=1).open()
    probe = FEW["greedy"]
    before = answer(engine, [probe])
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits
        try:
            answer(engine, [probe])
        except EngineStopped as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert result_bits(answer(engine, [probe])[0]) == result_bits(before[0])  # the parent goes on
