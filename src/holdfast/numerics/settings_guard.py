"""A guard around every build and every step: the numeric settings of torch are ours inside it.

A caller may change torch's settings at any time, and a trainer's settings are its own. So every setting
that can reach a bit is read when a guard is entered. What differs is set to our value, and restored when
the guard ends, also after an error. A setting that cannot be set raises `ConfigError` with its name.

    of the thread    floating-point environment, number of OpenMP threads, autocast, modes on torch's
                     stacks (`torch.device` as a context, FakeTensorMode), transforms of torch.func,
                     the tracer of torch.jit, current GPU
    of the process   `_of_cpus`, `_of_gpus`: matmul precision, oneDNN, TF32, default dtype, ...

Guards of several threads share the settings of the process: the first one sets them, the last one
restores them. If another thread changes one in the meantime, the end of the guard raises, because
bits computed inside may be wrong.

A setting that this version of torch does not have is left out.
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
from holdfast.numerics import fp_environment

_C: Any = torch._C
_UNREADABLE = object()  # torch refuses to report a precision that was set by two different functions


class Setting(NamedTuple):
    """`ours` is written if the value is not one of `allowed`. write: None if it cannot be changed."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None
    ours: Any
    allowed: tuple[Any, ...]


def _setting(
    name: str, getter: str, write: Callable[[Any], object] | str | None, ours: Any, *also: Any
) -> list[Setting]:
    """A setting of torch._C. Empty if this version of torch does not have it."""
    read = getattr(_C, getter, None)
    if isinstance(write, str):
        write = getattr(_C, write, None)
    return [] if read is None else [Setting(name, read, write, ours, (ours, *also))]


def _fp32_precision(backend: str, operation: str) -> list[Setting]:
    read = getattr(_C, "_get_fp32_precision_getter", None)
    write = getattr(_C, "_set_fp32_precision_setter", None)
    if read is None or write is None:
        return []
    name, of = f"fp32_precision of {backend}.{operation}", (backend, operation)
    return [Setting(name, partial(read, *of), partial(write, *of), "ieee", ("ieee", "none"))]


def _reduced_precision(name: str) -> list[Setting]:
    """Newer versions of torch have a pair: reduced precision, and whether split-K may use it."""
    setting = f"cublas_allow_{name}_reduced_precision_reduction"
    read, write = getattr(_C, f"_get_{setting}", None), getattr(_C, f"_set_{setting}", None)
    if read is None or write is None:
        return []
    name = f"torch.backends.cuda.matmul.allow_{name}_reduced_precision_reduction"
    if isinstance(read(), tuple):
        return [Setting(name, read, lambda pair: write(*pair), (False, True), ((False, True),))]
    return [Setting(name, read, write, False, (False,))]


def _set_deterministic(value: bool) -> None:
    _C._set_deterministic_algorithms(value, warn_only=_C._get_deterministic_algorithms_warn_only())


def _of_cpus() -> list[Setting]:
    """In this order: a precision that inherits its value, or that another function writes too, comes
    after those that decide it."""
    cpu_sums = "cpu_allow_fp16_reduced_precision_reduction"
    matmul_precision = "float32_matmul_precision"
    return [
        *_setting(
            f"torch.set_{matmul_precision}", f"_get_{matmul_precision}", f"_set_{matmul_precision}", "highest"
        ),
        *_fp32_precision("generic", "all"),
        *_fp32_precision("mkldnn", "all"),
        *_fp32_precision("cuda", "all"),
        *_fp32_precision("mkldnn", "matmul"),
        *_fp32_precision("cuda", "matmul"),
        *_setting("torch.backends.mkldnn.enabled", "_get_mkldnn_enabled", "_set_mkldnn_enabled", True),
        *_setting(
            *("torch.backends.mkldnn.deterministic", "_get_mkldnn_deterministic"),
            *("_set_mkldnn_deterministic", False),
        ),
        *_setting(
            *("torch.use_deterministic_algorithms", "_get_deterministic_algorithms"),
            *(_set_deterministic, False),
        ),
        *_setting(f"torch.backends.cpu.{cpu_sums[4:]}", f"_get_{cpu_sums}", f"_set_{cpu_sums}", False),
        *_setting("torch.set_default_dtype", "get_default_dtype", "_set_default_dtype", torch.float32),
        *_setting("torch.set_default_tensor_type", "_get_default_device", None, "cpu"),
    ]


def _of_gpus() -> list[Setting]:
    accumulation, blas = "cublas_allow_fp16_accumulation", "blas_preferred_backend"
    cublas, default = _C._BlasBackend.Cublas, _C._BlasBackend.Default
    found = [
        *_reduced_precision("bf16"),
        *_reduced_precision("fp16"),
        *_setting(
            *("torch.backends.cuda.matmul.allow_fp16_accumulation", f"_get_{accumulation}"),
            *(f"_set_{accumulation}", False),
        ),
        *_setting(
            *("torch.backends.cuda.preferred_blas_library", f"_get_{blas}", f"_set_{blas}", cublas, default),
        ),
        *_setting("the SM carveout", "_get_sm_carveout_experimental", "_set_sm_carveout_experimental", None),
        *_setting("torch.cuda.tunable", "_cuda_tunableop_is_enabled", "_cuda_tunableop_enable", False),
    ]
    # Handles take a new size when they are next used, so it cannot be set for one step: it must stay.
    for name, getter in (
        ("cublas_workspace_size", "_cuda_getCublasWorkspaceSize"),
        ("cublaslt_workspace_size", "_cuda_getCublasLtWorkspaceSize"),
    ):
        if hasattr(_C, getter):
            found += _setting(f"torch.backends.cuda.{name}", getter, None, getattr(_C, getter)())
    return found


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:
        return _UNREADABLE


def _shown(setting: Setting) -> str:
    value = _read(setting)
    return "set in two contradicting ways" if value is _UNREADABLE else str(value)


def _write_ours(setting: Setting) -> None:
    found = _shown(setting)
    if setting.write is not None:
        setting.write(setting.ours)
        if _read(setting) in setting.allowed:
            return
    raise ConfigError(
        f"{setting.name} is {found}, which changes the bits of answers; it must be {setting.ours} and cannot be "
        "changed here: restore it, or start a new process"
    )


class _Process:
    """The settings of the process, shared by the guards of all threads."""

    def __init__(self) -> None:
        self.num_threads: int | None = None  # None: not decided yet
        self.settings = _of_cpus()
        self._has_gpu = False
        self._lock = threading.Lock()
        self._inside: dict[object, int] = {}  # guards, with the number of changes when they entered
        self._before: dict[Setting, Any] = {}  # the caller's values, if one of them was replaced
        self._changes: list[str] = []  # made by other threads while a guard was entered

    def enter(self, guard: object, *, on_cuda: bool) -> None:
        """Set what differs. `leave` must follow, also after an error."""
        with self._lock:
            if on_cuda and not self._has_gpu:
                self.settings, self._has_gpu = [*self.settings, *_of_gpus()], True
            differing = self._find_difference()
            if differing is not None:
                if self._inside:
                    self._changes.append(f"{differing.name} ({_shown(differing)})")
                self._correct()
            self._inside[guard] = len(self._changes)

    def leave(self, guard: object) -> str | None:
        """Restore the caller's values if this is the last guard.

        Returns the name and value of a setting that another thread has changed since `enter`.
        """
        with self._lock:
            changed = None
            if guard in self._inside:
                changed = self._changed_since(self._inside.pop(guard))
            if not self._inside:
                self._restore()
                self._changes.clear()
            return changed

    def leave_applied(self, *, on_cuda: bool) -> None:
        """Set what differs, and do not restore it unless another guard is entered now."""
        self.enter(self, on_cuda=on_cuda)
        with self._lock:
            del self._inside[self]
            if not self._inside:
                self._before = {}

    def _changed_since(self, num_changes: int) -> str | None:
        differing = self._find_difference()
        if differing is not None:
            self._changes.append(f"{differing.name} ({_shown(differing)})")
            for setting in self.settings:  # the other thread's value stays
                if _read(setting) not in setting.allowed:
                    self._before.pop(setting, None)
        return self._changes[-1] if len(self._changes) > num_changes else None

    def _find_difference(self) -> Setting | None:
        for setting in self.settings:
            try:
                if setting.read() in setting.allowed:
                    continue
            except RuntimeError:
                pass
            return setting
        return None

    def _correct(self) -> None:
        """One after the other: a value that was inherited from another setting is not replaced. One that
        cannot be read comes last: it is readable once the others agree, unless it differs itself."""
        found = {setting: _read(setting) for setting in self.settings}
        self._before = {**found, **self._before}
        for setting in sorted(self.settings, key=lambda one: found[one] is _UNREADABLE):
            if _read(setting) not in setting.allowed:
                self._before[setting] = found[setting]
                _write_ours(setting)

    def _restore(self) -> None:
        for setting, value in self._before.items():
            if value is not _UNREADABLE and setting.write is not None and _read(setting) != value:
                setting.write(value)
        self._before = {}


class _Thread(threading.local):
    is_known = False  # whether its workers have been checked
    is_forked = False  # whether its workers were left behind by a fork


_process = _Process()
_thread = _Thread()


def _after_fork() -> None:
    _thread.is_forked = _thread.is_forked or _thread.is_known


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def decide_num_threads(wanted: int | None) -> int:
    """Return the number of threads of every guard: the first one wanted, or torch's default."""
    if _process.num_threads is None:
        _process.num_threads = torch.get_num_threads() if wanted is None else wanted
    return _process.num_threads


def leave_applied(device: torch.device) -> None:
    """Give torch our settings, in this thread and in the process, for code outside a guard."""
    fp_environment.enter_default()
    if _process.num_threads is not None:
        torch.set_num_threads(_process.num_threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _process.leave_applied(on_cuda=device.type == "cuda")


def without_modes() -> ExitStack:
    """Disable the modes on torch's stacks, and transforms, until what is returned is closed."""
    modes = ExitStack()
    if (
        _C._len_torch_function_stack()
        or _C._len_torch_dispatch_stack()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
    ):
        modes.callback(_C._set_tracing_state, _C._get_tracing_state())
        _C._set_tracing_state(None)
        modes.enter_context(temporarily_clear_interpreter_stack())
        modes.enter_context(_C.DisableTorchFunction())
        modes.enter_context(_disable_current_modes())
    return modes


class SettingsGuard:
    """Enter it in the thread that computes. Guards may be nested.

    own_workers: torch's OpenMP workers compute bits, so their floating-point environment is set at
    every entry. Otherwise it is set when the thread enters its first guard, and after a change.
    """

    __slots__ = ("_device", "_on_cuda", "_own_workers", "_undo")

    def __init__(self, device: torch.device, *, own_workers: bool = False) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._own_workers = own_workers and not self._on_cuda
        self._undo = ExitStack()

    def __enter__(self) -> "SettingsGuard":
        num_threads = _process.num_threads or torch.get_num_threads()
        if _thread.is_forked and num_threads > 1:
            raise ConfigError(
                "this process was forked from one that has computed, and the threads of that one do not exist "
                'here: a pass would wait for them for ever; start processes with the method "spawn"'
            )
        try:
            is_new_environment = self._enter_thread()
            _process.enter(self, on_cuda=self._on_cuda)
            if is_new_environment or self._own_workers or not _thread.is_known:
                _set_workers(num_threads)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        changed = self._leave()
        if changed is not None and kind is None:
            raise ConfigError(
                f"{changed} was changed by another thread during this pass, so its bits are not guaranteed; "
                "change settings of torch between passes, or in another process"
            )

    def _enter_thread(self) -> bool:
        """Whether its floating-point environment was another one."""
        environment = fp_environment.enter_default()
        if environment is not None:
            self._undo.callback(fp_environment.restore, environment)
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                self._undo.callback(torch.set_autocast_enabled, kind, True)
                torch.set_autocast_enabled(kind, False)
        self._undo.enter_context(without_modes())
        if _process.num_threads is not None:
            found = torch.get_num_threads()
            if found != _process.num_threads:
                self._undo.callback(torch.set_num_threads, found)
            torch.set_num_threads(_process.num_threads)  # also where it is equal: MKL has its own number
        if fp_environment.has_dynamic_threads():
            self._undo.callback(fp_environment.set_dynamic_threads, True)
            fp_environment.set_dynamic_threads(False)
        if self._on_cuda:
            current = torch.cuda.current_device()
            if self._device.index is not None and current != self._device.index:
                self._undo.callback(torch.cuda.set_device, current)
                torch.cuda.set_device(self._device)
        return environment is not None

    def _leave(self) -> str | None:
        """Restore everything. Returns what another thread has changed, if anything."""
        with self._undo:
            return _process.leave(self)


def _set_workers(num_threads: int) -> None:
    """Give this thread's OpenMP workers, which inherited the environment of their creator, the default one.
    They are checked once, and every time where they cannot be set."""
    is_set = fp_environment.reset_workers(num_threads)
    if not is_set or not _thread.is_known:
        fp_environment.check_workers(num_threads)
        _thread.is_known = True
