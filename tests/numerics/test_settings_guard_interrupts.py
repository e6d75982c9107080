"""A guard under an interrupt, inside torch's transforms, with dynamic threads and after a fork."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.numerics import fp_environment, openmp, settings_guard, watched_settings
from holdfast.numerics.settings_guard import SettingsGuard

CPU = torch.device("cpu")
FILES = tuple(one.__file__ for one in (settings_guard, watched_settings, fp_environment, openmp))


class _Interrupt:
    """Raises KeyboardInterrupt after the n-th call that the guard makes: Python looks for signals
    there."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event == "c_return" and frame.f_code.co_filename in FILES:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def _state() -> tuple[object, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        fp_environment.is_flushing(),
        len(settings_guard._process.cpu._entered),
    )


@contextmanager
def _hostile() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads + 1)
    torch.set_flush_denormal(True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    finally:
        torch.set_flush_denormal(False)
        fp_environment.reset_workers(threads + 1)  # a guard that ends gives them the caller's environment
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def _enter_until(number: int) -> bool:
    """Enter and leave a guard. Whether it was interrupted."""
    interrupt = _Interrupt(number)
    sys.setprofile(interrupt)
    try:
        with SettingsGuard(CPU):
            pass
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_interrupt_leaves_the_settings_of_the_caller() -> None:
    settings_guard.decide_num_threads(None)
    with _hostile():
        before = _state()
        number = 1
        while _enter_until(number):
            assert _state() == before, f"after call {number}"
            number += 1
    assert number > 50


def _in_jit(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(function, torch.ones(2), check_trace=False)  # type: ignore[no-untyped-call]


TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], object]] = {
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum())(torch.ones(2)),
    "functionalize": lambda function: torch.func.functionalize(function)(torch.ones(2)),
    "jit": _in_jit,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_end_at_the_guard(name: str) -> None:
    """Inside them, the memory of a new tensor is not where its address says."""
    found = []

    def function(x: torch.Tensor) -> torch.Tensor:
        with SettingsGuard(CPU):
            made = torch.arange(3)
            found.append((made.numpy().tolist(), made.data_ptr() != 0, type(made.shape[0])))
        return x * 2

    TRANSFORMS[name](function)
    assert found[0] == ([0, 1, 2], True, int)


def test_dynamic_threads_are_off_inside() -> None:
    if openmp._set_dynamic is None:
        pytest.skip("torch has no OpenMP runtime here")
    before = openmp.has_dynamic_threads()
    openmp.set_dynamic_threads(True)
    try:
        with SettingsGuard(CPU):
            assert not openmp.has_dynamic_threads()
        assert openmp.has_dynamic_threads()
    finally:
        openmp.set_dynamic_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_forked_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its OpenMP workers do not exist: a parallel region would wait for ever."""
    monkeypatch.setattr(settings_guard._process, "num_threads", 2)
    statuses = []

    def fork() -> None:
        settings_guard._thread.is_known = True
        child = os.fork()
        if child == 0:
            try:
                with SettingsGuard(CPU):
                    os._exit(1)
            except ConfigError as error:
                os._exit(0 if "forked" in str(error) else 2)
            finally:
                os._exit(3)
        statuses.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(60)
    assert statuses == [0]
