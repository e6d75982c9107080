"""The floating-point environment of threads and of OpenMP workers: set to the default, restored."""

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.numerics import fp_environment as fp
from holdfast.numerics.ops import Backend
from holdfast.numerics.select_backend import open_backend
from holdfast.numerics.settings import numeric_settings
from holdfast.numerics.settings_guard import SettingsGuard

CPU = torch.device("cpu")
THREADS = 2  # enough to have a worker

needs_glibc = pytest.mark.skipif(fp.find_libc() is None, reason="needs glibc on x86-64 or Arm")


@pytest.fixture
def restored() -> Iterator[None]:
    """The default environment before and after a test, in this thread and its workers."""
    fp.enter_default()
    fp.reset_workers(THREADS)
    yield
    fp.enter_default()
    fp.reset_workers(THREADS)
    fp.check_workers(THREADS)


def _flush() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")


def _round_up() -> None:
    upward = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
    assert ctypes.CDLL(None).fesetround(upward) == 0


def _make_workers(change: Callable[[], None]) -> None:
    """Give the workers another environment, and this thread the default one."""
    change()
    fp._libc.fegetenv(fp._buffer.address)  # type: ignore[union-attr]
    fp.parallel(fp._libc.address, fp._buffer.address, THREADS, 0)  # type: ignore[union-attr]
    fp.enter_default()


@needs_glibc
@pytest.mark.parametrize("change", [_flush, _round_up])
def test_thread_gets_the_default_and_its_own_again(change: Callable[[], None], restored: None) -> None:
    assert fp.enter_default() is None
    change()
    theirs = fp.is_flushing(), fp.is_rounding_to_nearest()
    assert theirs != (False, True)
    saved = fp.enter_default()
    assert saved is not None
    assert (fp.is_flushing(), fp.is_rounding_to_nearest()) == (False, True)
    fp.restore(saved)
    assert (fp.is_flushing(), fp.is_rounding_to_nearest()) == theirs


@needs_glibc
@pytest.mark.parametrize("change", [_flush, _round_up])
def test_workers_that_compute_otherwise_are_found_and_reset(
    change: Callable[[], None], restored: None
) -> None:
    torch.set_num_threads(THREADS)
    _make_workers(change)
    with pytest.raises(ConfigError, match="flushes subnormal numbers to zero or rounds in another way"):
        fp.check_workers(THREADS)
    assert fp.reset_workers(THREADS)
    fp.check_workers(THREADS)


def test_without_glibc_torch_switches_the_flushing(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp, "_libc", None)
    assert fp.enter_default() is None
    assert not fp.reset_workers(THREADS)
    _flush()
    saved = fp.enter_default()
    assert saved is True and not fp.is_flushing()
    fp.restore(saved)
    assert fp.is_flushing()
    torch.set_flush_denormal(False)


@needs_glibc
def test_without_glibc_a_rounding_mode_is_refused(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fp, "_libc", None)
        _round_up()
        with pytest.raises(ConfigError, match="does not round to nearest"):
            fp.enter_default()


@needs_glibc
def test_guard_sets_thread_and_workers_and_restores_the_thread(restored: None) -> None:
    numeric_settings()
    torch.set_num_threads(THREADS)
    tiny = torch.full((1 << 18,), 2.0**-140)
    _make_workers(_flush)
    _flush()
    with SettingsGuard(CPU):
        assert torch.equal((tiny * 1.0).view(torch.int32), torch.full((1 << 18,), 512, dtype=torch.int32))
    assert fp.is_flushing()


def test_workers_that_cannot_be_set_are_refused(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another OpenMP runtime or C library: checked at every entry."""
    numeric_settings()
    torch.set_num_threads(THREADS)
    with SettingsGuard(CPU):
        pass
    if fp.find_libc() is not None:
        _make_workers(_flush)
    monkeypatch.setattr(fp, "parallel", None)
    refusal = pytest.raises(ConfigError, match="start a new process")
    with refusal if fp.find_libc() is not None else nullcontext(), SettingsGuard(CPU, own_workers=True):
        pass
    monkeypatch.undo()


def _compute(backend: Backend, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Operations large enough for several threads."""
    return [
        backend.linear(inputs["x"], backend.pack(inputs["weight"]), canonical=True),
        backend.rms_norm(inputs["tiny"], inputs["norm"], 1e-30),
        backend.silu_mul(inputs["gate_up"]),
        *backend.topk(inputs["logits"], 5),
        backend.logsumexp(inputs["logits"]),
    ]


@needs_glibc
@pytest.mark.parametrize("change", [_flush, _round_up])
def test_c_kernels_do_not_depend_on_the_environment(change: Callable[[], None], restored: None) -> None:
    """Neither on that of the calling thread nor on that of the workers, even without a guard."""
    backend = open_backend(torch.float32, kernels="c", num_threads=THREADS)
    generator = torch.Generator().manual_seed(1)
    scales = {"x": -70, "weight": -72, "tiny": -135, "gate_up": -68, "logits": -130, "norm": 0}
    shapes = {"x": (64, 256), "weight": (512, 256), "tiny": (256, 256), "gate_up": (64, 2048)}
    shapes |= {"logits": (4, 4096), "norm": (256,)}
    inputs = {
        name: torch.randn(shape, generator=generator) * 2.0 ** scales[name] for name, shape in shapes.items()
    }
    expected = _compute(backend, inputs)
    assert all((out != 0).any() for out in expected)
    _make_workers(change)
    with_workers = _compute(backend, inputs)
    change()
    with_thread = _compute(backend, inputs)
    assert fp.enter_default() is not None  # the kernels have restored the caller's
    for found in (with_workers, with_thread):
        assert all(torch.equal(out, again) for out, again in zip(expected, found, strict=True))


_CHILD = """
import threading, torch
torch.set_flush_denormal(True)  # before the import and in the thread that computes
from holdfast.numerics import fp_environment as fp
from holdfast.numerics.settings import numeric_settings
from holdfast.numerics.settings_guard import SettingsGuard
torch.ones(1 << 20) * 2.0  # the workers inherit it
numeric_settings(2)
with SettingsGuard(torch.device("cpu")):
    fp.check_workers(2)
assert fp.is_flushing()
def other():
    assert not fp.is_flushing() or fp.enter_default() is not None
    with SettingsGuard(torch.device("cpu")):
        fp.check_workers(2)
thread = threading.Thread(target=other); thread.start(); thread.join()
print("done")
"""


@needs_glibc
def test_flushing_before_the_import_does_not_reach_a_guard() -> None:
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr
