"""A guard around every build and every step: the numeric settings of torch are ours inside it.

A caller may change torch's settings at any time, and a trainer's settings are its own. So the
thread that computes reads every setting that can reach a bit when it enters the guard. What differs
is set to our value and restored when the guard ends, also after an error. A setting that cannot be
set raises `ConfigError` with its name.

Two kinds:

    of the thread    floating-point environment, number of OpenMP threads, autocast, modes on torch's
                     stacks (`torch.device` as a context, FakeTensorMode), transforms of torch.func,
                     the tracer of torch.jit, current GPU
    of the process   matmul precision, oneDNN, TF32, reduced precision, default dtype, ...
                     (`watched_settings.py`)

Guards of several threads share the settings of the process: the first one sets them, the last one
restores them. If another thread changes one in the meantime, the end of the guard raises, because
bits computed inside may be wrong.

An interrupt (Ctrl-C) may come between any two operations. So what is to be restored is noted before
it is changed, and leaving a guard twice does no harm.
"""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.errors import ConfigError
from holdfast.numerics import fp_environment, openmp
from holdfast.numerics.watched_settings import Watch, cpu_watch, cuda_settings

_C: Any = torch._C
_is_any_autocast_enabled = getattr(
    _C,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)


class _Process:
    """What is the same for all guards: the watches, and the number of threads."""

    def __init__(self) -> None:
        self.cpu = cpu_watch()
        self.cuda: Watch | None = None
        self.num_threads: int | None = None  # None: not decided yet


_process = _Process()
_cuda_lock = threading.Lock()


def decide_num_threads(wanted: int | None) -> int:
    """The number of threads of every guard: the first one wanted, or torch's default."""
    if _process.num_threads is None:
        _process.num_threads = torch.get_num_threads() if wanted is None else wanted
    return _process.num_threads


def _watches(*, on_cuda: bool) -> list[Watch]:
    if not on_cuda:
        return [_process.cpu]
    with _cuda_lock:
        if _process.cuda is None:
            _process.cuda = Watch(cuda_settings())
        return [_process.cpu, _process.cuda]


def leave_applied(device: torch.device) -> None:
    """Give torch our settings, in this thread and in the process, for code outside a guard."""
    fp_environment.enter_default()
    if _process.num_threads is not None:
        torch.set_num_threads(_process.num_threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for watch in _watches(on_cuda=device.type == "cuda"):
        watch.leave_applied()


class _Thread(threading.local):
    is_known = False  # whether its workers have been checked
    is_forked = False  # whether its workers were left behind by a fork


_thread = _Thread()


def _after_fork() -> None:
    _thread.is_forked = _thread.is_forked or _thread.is_known


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _require_workers() -> None:
    if _thread.is_forked and (_process.num_threads or torch.get_num_threads()) > 1:
        raise ConfigError(
            "this process was forked from one that has computed, and the threads of that one do not exist here: "
            'a pass would wait for them for ever; start processes with the method "spawn"'
        )


def _has_modes() -> bool:
    return bool(
        _C._len_torch_function_stack()
        or _C._len_torch_dispatch_stack()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
    )


def without_modes() -> ExitStack:
    """Disable the modes on torch's stacks, for code that reads results outside a guard."""
    modes = ExitStack()
    if _has_modes():
        _disable_modes(modes)
    return modes


def _disable_modes(modes: ExitStack) -> None:
    """Until `modes` is closed."""
    modes.callback(_C._set_tracing_state, _C._get_tracing_state())
    _C._set_tracing_state(None)
    modes.enter_context(temporarily_clear_interpreter_stack())
    modes.enter_context(_C.DisableTorchFunction())
    modes.enter_context(_disable_current_modes())


class SettingsGuard:
    """Enter it in the thread that computes. Guards may be nested.

    own_workers: torch's OpenMP workers compute bits, so their floating-point environment is set at
    every entry. Otherwise it is set when the thread enters its first guard, and after a change.
    """

    __slots__ = ("_device", "_on_cuda", "_own_workers", "_saved_fp", "_undo", "_watches")

    def __init__(self, device: torch.device, *, own_workers: bool = False) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._own_workers = own_workers and not self._on_cuda
        self._saved_fp: fp_environment.Saved | None = None
        self._undo: list[Callable[[], object]] = []  # in the order of the changes
        self._watches: list[Watch] = []  # entered

    def __enter__(self) -> "SettingsGuard":
        _require_workers()
        try:
            self._saved_fp = fp_environment.enter_default()
            self._enter_thread()
            for watch in _watches(on_cuda=self._on_cuda):
                self._watches.append(watch)
                watch.enter(self)
            self._set_workers()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            changed = self._leave()
        except BaseException:  # an interrupt
            self._leave()
            raise
        if changed is not None and kind is None:
            raise ConfigError(
                f"{changed} was changed by another thread during this pass, so its bits are not guaranteed; "
                "change settings of torch between passes, or in another process"
            )

    def _enter_thread(self) -> None:
        if _is_any_autocast_enabled():
            self._disable_autocast()
        if _has_modes():
            modes = ExitStack()
            self._undo.append(modes.close)
            _disable_modes(modes)
        num_threads = _process.num_threads
        if num_threads is not None:
            found = torch.get_num_threads()
            if found != num_threads:
                self._undo.append(lambda: torch.set_num_threads(found))
            torch.set_num_threads(num_threads)  # also where it is equal: MKL has a number of its own
        if openmp.has_dynamic_threads():
            self._undo.append(partial(openmp.set_dynamic_threads, True))
            openmp.set_dynamic_threads(False)
        if self._on_cuda:
            current = torch.cuda.current_device()
            if self._device.index is not None and current != self._device.index:
                self._undo.append(lambda: torch.cuda.set_device(current))
                torch.cuda.set_device(self._device)

    def _disable_autocast(self) -> None:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                self._undo.append(partial(torch.set_autocast_enabled, kind, True))
                torch.set_autocast_enabled(kind, False)

    def _set_workers(self) -> None:
        """The OpenMP workers of this thread, which inherited the environment of their creator. They
        are checked once, and every time where they cannot be set."""
        if _thread.is_known and self._saved_fp is None and not self._own_workers:
            return
        num_threads = _process.num_threads or torch.get_num_threads()
        is_set = fp_environment.reset_workers(num_threads)
        if not is_set or not _thread.is_known:
            fp_environment.check_workers(num_threads)
            _thread.is_known = True

    def _leave(self) -> str | None:
        """Restore everything. Returns what another thread has changed, if anything."""
        changed = None
        while self._watches:
            changed = self._watches[-1].exit(self) or changed
            self._watches.pop()
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        if self._saved_fp is not None:
            fp_environment.reset_workers(_process.num_threads or torch.get_num_threads(), self._saved_fp)
            fp_environment.restore(self._saved_fp)
            self._saved_fp = None
        return changed
