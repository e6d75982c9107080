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
from typing import Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.errors import ConfigError
from holdfast.numerics import fp_environment, openmp

_C: Any = torch._C
_UNREADABLE = object()  # torch refuses to report a precision that was set by two different functions
_is_any_autocast_enabled = getattr(
    _C,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)
_CONTRADICTORY = "set in two contradicting ways"


class Setting(NamedTuple):
    """A setting of the process. `ours` is written if the value is not one of `allowed`."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None] | None  # None: refuse
    ours: Any
    allowed: tuple[Any, ...]


def _setting(
    name: str, getter: str, write: Callable[[Any], None] | str | None, ours: Any, *also: Any
) -> list[Setting]:
    """Empty if this version of torch does not have it."""
    read = getattr(_C, getter, None)
    if isinstance(write, str):
        write = getattr(_C, write, None)
    return [] if read is None else [Setting(name, read, write, ours, (ours, *also))]


def _fp32_precision(backend: str, operation: str) -> list[Setting]:
    read = getattr(_C, "_get_fp32_precision_getter", None)
    write = getattr(_C, "_set_fp32_precision_setter", None)
    if read is None or write is None:
        return []
    name = f"fp32_precision of {backend}.{operation}"
    return [
        Setting(
            name,
            partial(read, backend, operation),
            partial(write, backend, operation),
            "ieee",
            ("ieee", "none"),
        )
    ]


def _set_pair(name: str) -> Callable[[Any], None]:
    """Newer versions of torch take a pair: reduced precision, and whether split-K may use it."""
    write = getattr(_C, f"_set_{name}", None)
    return lambda value: write(*value) if isinstance(value, tuple) else write(value)  # type: ignore[misc]


def _reduced_precision(name: str) -> list[Setting]:
    getter = f"_get_cublas_allow_{name}_reduced_precision_reduction"
    read = getattr(_C, getter, None)
    if read is None:
        return []
    is_pair = isinstance(read(), tuple)
    return _setting(
        f"torch.backends.cuda.matmul.allow_{name}_reduced_precision_reduction",
        getter,
        _set_pair(f"cublas_allow_{name}_reduced_precision_reduction"),
        (False, True) if is_pair else False,
    )


_MATMUL_PRECISION = _setting(
    "torch.set_float32_matmul_precision",
    "_get_float32_matmul_precision",
    "_set_float32_matmul_precision",
    "highest",
)
_MATMULS = [*_fp32_precision("mkldnn", "matmul"), *_fp32_precision("cuda", "matmul")]
_PARENTS = [  # what the precision of a matmul is inherited from
    *_fp32_precision("generic", "all"),
    *_fp32_precision("mkldnn", "all"),
    *_fp32_precision("cuda", "all"),
]
_OTHERS = [
    *_setting("torch.backends.mkldnn.enabled", "_get_mkldnn_enabled", "_set_mkldnn_enabled", True),
    *_setting(
        "torch.backends.mkldnn.deterministic", "_get_mkldnn_deterministic", "_set_mkldnn_deterministic", False
    ),
    *_setting(
        "torch.use_deterministic_algorithms",
        "_get_deterministic_algorithms",
        lambda value: _C._set_deterministic_algorithms(
            value, warn_only=_C._get_deterministic_algorithms_warn_only()
        ),
        False,
    ),
    *_setting(
        "torch.backends.cpu.allow_fp16_reduced_precision_reduction",
        "_get_cpu_allow_fp16_reduced_precision_reduction",
        "_set_cpu_allow_fp16_reduced_precision_reduction",
        False,
    ),
    *_setting("torch.set_default_dtype", "get_default_dtype", "_set_default_dtype", torch.float32),
    *_setting("torch.set_default_tensor_type", "_get_default_device", None, "cpu"),
]


def _cuda_settings() -> list[Setting]:
    return [
        *_reduced_precision("bf16"),
        *_reduced_precision("fp16"),
        *_setting(
            "torch.backends.cuda.matmul.allow_fp16_accumulation",
            "_get_cublas_allow_fp16_accumulation",
            "_set_cublas_allow_fp16_accumulation",
            False,
        ),
        *_setting(
            "torch.backends.cuda.preferred_blas_library",
            "_get_blas_preferred_backend",
            "_set_blas_preferred_backend",
            _C._BlasBackend.Cublas,
            _C._BlasBackend.Default,
        ),
        *_setting("the SM carveout", "_get_sm_carveout_experimental", "_set_sm_carveout_experimental", None),
        *_setting("torch.cuda.tunable", "_cuda_tunableop_is_enabled", "_cuda_tunableop_enable", False),
        # Handles take a new size when they are next used, so it cannot be set for one step.
        *_at_first_use("torch.backends.cuda.cublas_workspace_size", "_cuda_getCublasWorkspaceSize"),
        *_at_first_use("torch.backends.cuda.cublaslt_workspace_size", "_cuda_getCublasLtWorkspaceSize"),
    ]


def _at_first_use(name: str, getter: str) -> list[Setting]:
    """A setting that must keep the value it has now."""
    read = getattr(_C, getter, None)
    return [] if read is None else _setting(name, getter, None, read())


class Watch:
    """Settings of the process, shared by the guards of all threads."""

    def __init__(self, watched: list[Setting], parents: list[Setting] | None = None) -> None:
        self._watched = watched
        self._reads = [(setting.read, setting.allowed) for setting in watched]
        self._in_order = [*_MATMUL_PRECISION, *parents, *watched] if parents else watched
        self._lock = threading.Lock()
        self._entered: dict[object, int] = {}  # guards, with the number of changes when they entered
        self._before: dict[Setting, Any] = {}  # the caller's values, if one of them was replaced
        self._replaced: list[Setting] = []  # in this order
        self._changes: list[str] = []  # made by other threads while a guard was entered

    def enter(self, guard: object) -> None:
        """Set what differs. `exit` must follow, also after an error."""
        with self._lock:
            differing = self._first_difference()
            if differing is not None:
                if self._entered:
                    self._changes.append(f"{differing.name} ({_shown(differing)})")
                self._correct()
            self._entered[guard] = len(self._changes)

    def exit(self, guard: object) -> str | None:
        """Restore the caller's values if this is the last guard.

        Returns the name and value of a setting that another thread has changed since `enter`.
        """
        with self._lock:
            changed = None
            if guard in self._entered:
                changed = self._changed_since(self._entered[guard])
                del self._entered[guard]
            if not self._entered:
                self._restore()
                self._changes.clear()
            return changed

    def _changed_since(self, num_changes: int) -> str | None:
        differing = self._first_difference()
        if differing is not None:
            self._changes.append(f"{differing.name} ({_shown(differing)})")
            for setting in self._watched:  # the other thread's value stays
                if not _is_ours(setting):
                    self._before.pop(setting, None)
        return self._changes[-1] if len(self._changes) > num_changes else None

    def leave_applied(self) -> None:
        """Set what differs, and do not restore it unless a guard is entered now."""
        with self._lock:
            self._correct()
            if not self._entered:
                self._before, self._replaced = {}, []

    def _first_difference(self) -> Setting | None:
        try:
            for read, allowed in self._reads:
                if read() not in allowed:
                    break
            else:
                return None
        except RuntimeError:
            pass
        return next((setting for setting in self._watched if not _is_ours(setting)), None)

    def _correct(self) -> None:
        """One after the other: a value that was inherited from another setting is not replaced."""
        found = {setting: _read(setting) for setting in self._in_order}
        self._before = {**found, **self._before}
        unreadable = []
        for setting in self._in_order:
            value = _read(setting)
            if value is _UNREADABLE:
                unreadable.append(setting)
            elif value not in setting.allowed:
                self._before[setting] = found[setting]
                self._replaced.append(setting)
                _write(setting, value)
        for setting in unreadable:  # readable once the others agree, unless it differs itself
            if not _is_ours(setting):
                _write(setting, _CONTRADICTORY)

    def _restore(self) -> None:
        """In reverse order; then what that has changed besides: one function of torch writes two
        settings."""
        before, replaced = self._before, self._replaced
        for setting in [*reversed(replaced), *(setting for setting in before if replaced)]:
            value = before.get(setting, _UNREADABLE)
            if value is not _UNREADABLE and setting.write is not None and _read(setting) != value:
                setting.write(value)
        self._before, self._replaced = {}, []


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:
        return _UNREADABLE


def _is_ours(setting: Setting) -> bool:
    return _read(setting) in setting.allowed


def _write(setting: Setting, found: Any) -> None:
    """Set our value. Raises ConfigError if that fails."""
    if setting.write is not None:
        setting.write(setting.ours)
        if _is_ours(setting):
            return
    raise ConfigError(
        f"{setting.name} is {found}, which changes the bits of answers; it must be {setting.ours} and cannot be "
        "changed here: restore it, or start a new process"
    )


def _shown(setting: Setting) -> str:
    value = _read(setting)
    return _CONTRADICTORY if value is _UNREADABLE else str(value)


class _Process:
    """What is the same for all guards: the watches, and the number of threads."""

    def __init__(self) -> None:
        self.cpu = Watch([*_MATMUL_PRECISION, *_MATMULS, *_OTHERS], _PARENTS)
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
            _process.cuda = Watch(_cuda_settings())
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
