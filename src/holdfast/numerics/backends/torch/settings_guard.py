"""A guard around every build and every step: the numeric settings of torch are ours inside it.

A caller may change torch's settings at any time, and a trainer's settings are its own. An engine has a
thread of its own, which builds and steps it, so only some settings must be given back:

    of the thread    rounding, flushing of subnormal numbers, number of OpenMP threads, current GPU
                     set at every entry; a thread that steps an engine keeps them
    of a context     autocast, modes on torch's stacks (`torch.device` as a context, FakeTensorMode),
                     transforms of torch.func, the tracer of torch.jit
                     off until the guard ends
    of the process   `_of_cpus`, `_of_gpus`: matmul precision, oneDNN, TF32, default dtype, ...
                     what differs is set, and restored when the guard ends, also after an error

A setting that cannot be set raises `ConfigError` with its name. Guards of several threads share the
settings of the process: the first one sets them, the last one restores them. If another thread changes
one in the meantime, the end of the guard raises, because bits computed inside may be wrong.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.errors import ConfigError
from holdfast.numerics.settings_guard import (
    DEFAULT_ENVIRONMENT,
    decide_num_threads,
    enter_default_environment,
    fesetenv,
    function_of,
    signed_products,
)

_C: Any = torch._C

# Of the thread


def _openmp(name: str, *arguments: Any) -> Any:
    """Return a function of the OpenMP runtime that torch uses."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    return function_of(library, name, *arguments)


# Runs a C function in every thread: (function, its argument, number of threads, flags).
_run_in_workers = _openmp("GOMP_parallel", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
# With dynamic threads a parallel region gets fewer threads when the machine is busy. A library that
# divides a sum among its threads then gives other bits.
_set_dynamic_threads = _openmp("omp_set_dynamic", ctypes.c_int)

_GRAIN = 32768  # elements for which torch engages one more thread


class _Thread(threading.local):
    is_ours = False  # with its workers


_thread = _Thread()


def own_thread(device: torch.device) -> None:
    """Give the calling thread our settings, for good, and once its OpenMP workers too."""
    num_threads = decide_num_threads(None, device)
    enter_default_environment()
    found = torch.get_num_threads()  # in a new thread, what any thread has set last
    if found != num_threads or not _thread.is_ours:
        torch.set_num_threads(num_threads)  # also where it is equal: MKL has its own number
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if not _thread.is_ours:
        if _set_dynamic_threads is not None:
            _set_dynamic_threads(0)
        own_workers(num_threads)
        _thread.is_ours = True


def own_workers(num_threads: int) -> None:
    """Give the OpenMP workers, which inherited the environment of their creator, the default one.

    Raises ConfigError if one of them or the calling thread flushes or rounds differently all the same.
    """
    if fesetenv is not None and _run_in_workers is not None:
        address = ctypes.cast(fesetenv, ctypes.c_void_p)
        _run_in_workers(address, DEFAULT_ENVIRONMENT, num_threads, 0)
    if not compute_by_default(num_threads):
        raise ConfigError(
            "a thread of torch's thread pool flushes subnormal numbers to zero or rounds in another way "
            "(torch.set_flush_denormal or fesetround was in effect when it started), and this system has no way to "
            "reset it; start a new process, and do not switch it on before the engine is built"
        )


def compute_by_default(num_threads: int) -> bool:
    """Multiply subnormal and rounded numbers in all of torch's threads. Return whether all products are
    those of the default environment."""
    left, right, expected = torch.from_numpy(signed_products()).T
    count = 2 * num_threads * _GRAIN // len(expected)
    factors = (part.contiguous().view(torch.float32).repeat(count) for part in (left, right))
    found = torch.mul(*factors)
    return torch.equal(found.view(torch.int32), expected.repeat(count))


# Of a context


def without_contexts() -> ExitStack:
    """Switch off autocast, the modes on torch's stacks, and transforms, until what is returned is closed."""
    contexts = ExitStack()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            contexts.callback(torch.set_autocast_enabled, kind, True)
            torch.set_autocast_enabled(kind, False)
    if (
        _C._len_torch_function_stack()
        or _C._len_torch_dispatch_stack()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
    ):
        contexts.callback(_C._set_tracing_state, _C._get_tracing_state())
        _C._set_tracing_state(None)
        contexts.enter_context(temporarily_clear_interpreter_stack())
        contexts.enter_context(_C.DisableTorchFunction())
        contexts.enter_context(_disable_current_modes())
    return contexts


# Of the process


class Setting(NamedTuple):
    """The first of `allowed` is written if the value is none of them. write: None if it cannot be changed."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None
    allowed: tuple[Any, ...]


_UNREADABLE = object()  # torch refuses to report a precision that was set by two different functions


def _pair(stem: str, *allowed: Any, name: str) -> list[Setting]:
    """Return a setting of torch._C. Empty if this version of torch does not have it."""
    read, write = getattr(_C, f"_get_{stem}", None), getattr(_C, f"_set_{stem}", None)
    return [] if read is None else [Setting(name, read, write, allowed)]


def _fp32_precision(*of: str) -> Setting:
    read, write = _C._get_fp32_precision_getter, _C._set_fp32_precision_setter
    name = f"fp32_precision of {'.'.join(of)}"
    return Setting(name, partial(read, *of), partial(write, *of), ("ieee", "none"))


def _reduced_precision(kind: str) -> Setting:
    """In newer versions of torch a pair: reduced precision, and whether split-K may use it."""
    stem = f"cublas_allow_{kind}_reduced_precision_reduction"
    read, write = getattr(_C, f"_get_{stem}"), getattr(_C, f"_set_{stem}")
    name = f"torch.backends.cuda.matmul.allow_{kind}_reduced_precision_reduction"
    if isinstance(read(), tuple):
        return Setting(name, read, lambda pair: write(*pair), ((False, True),))
    return Setting(name, read, write, (False,))


def _set_deterministic(value: bool) -> None:
    _C._set_deterministic_algorithms(value, warn_only=_C._get_deterministic_algorithms_warn_only())


def _of_cpus() -> list[Setting]:
    """In this order: a precision that inherits its value, or that another function writes too, comes
    after those that decide it."""
    cpu_sums, is_deterministic = "allow_fp16_reduced_precision_reduction", _C._get_deterministic_algorithms
    return [
        *_pair("float32_matmul_precision", "highest", name="torch.set_float32_matmul_precision"),
        _fp32_precision("generic", "all"),
        _fp32_precision("mkldnn", "all"),
        _fp32_precision("cuda", "all"),
        _fp32_precision("mkldnn", "matmul"),
        _fp32_precision("cuda", "matmul"),
        *_pair("mkldnn_enabled", True, name="torch.backends.mkldnn.enabled"),
        *_pair("mkldnn_deterministic", False, name="torch.backends.mkldnn.deterministic"),
        Setting("torch.use_deterministic_algorithms", is_deterministic, _set_deterministic, (False,)),
        *_pair(f"cpu_{cpu_sums}", False, name=f"torch.backends.cpu.{cpu_sums}"),
        Setting("torch.set_default_dtype", _C.get_default_dtype, _C._set_default_dtype, (torch.float32,)),
        *_pair("default_device", "cpu", name="torch.set_default_tensor_type"),  # it has no setter
    ]


def _of_gpus() -> list[Setting]:
    sums, cublas = "fp16_accumulation", _C._BlasBackend.Cublas
    found = [
        _reduced_precision("bf16"),
        _reduced_precision("fp16"),
        *_pair(f"cublas_allow_{sums}", False, name=f"torch.backends.cuda.matmul.allow_{sums}"),
        *_pair(
            *("blas_preferred_backend", cublas, _C._BlasBackend.Default),
            name="torch.backends.cuda.preferred_blas_library",
        ),
        *_pair("sm_carveout_experimental", None, name="the SM carveout"),
    ]
    if hasattr(_C, "_cuda_tunableop_enable"):
        read, write = _C._cuda_tunableop_is_enabled, _C._cuda_tunableop_enable
        found.append(Setting("torch.cuda.tunable", read, write, (False,)))
    # Handles take a new size when they are next used, so it cannot be set for one step: it must stay.
    for name in ("Cublas", "CublasLt"):
        read = getattr(_C, f"_cuda_get{name}WorkspaceSize", None)
        if read is not None:
            name = f"torch.backends.cuda.{name.lower()}_workspace_size"
            found.append(Setting(name, read, None, (read(),)))
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
    found, ours = _shown(setting), setting.allowed[0]
    if setting.write is not None:
        setting.write(ours)
    if _read(setting) not in setting.allowed:
        raise ConfigError(
            f"{setting.name} is {found}, which changes the bits of answers; it must be {ours} and cannot be "
            "changed here: restore it, or start a new process"
        )


class _Process:
    """The settings of the process, shared by the guards of all threads."""

    def __init__(self) -> None:
        self.settings = _of_cpus()
        self._has_gpu = False
        self._lock = threading.Lock()
        self._inside: dict[object, str | None] = {}  # guards, with what another thread has changed since
        self._before: dict[Setting, Any] = {}  # the caller's values, if one of them was replaced

    def enter(self, guard: object, *, on_cuda: bool) -> None:
        """Set what differs. `leave` must follow, also after an error."""
        with self._lock:
            if on_cuda and not self._has_gpu:
                self.settings, self._has_gpu = [*self.settings, *_of_gpus()], True
            if self._note_changes():
                self._correct()
            self._inside[guard] = None

    def leave(self, guard: object) -> str | None:
        """Restore the caller's values if this is the last guard.

        Returns the name and value of a setting that another thread has changed since `enter`.
        """
        with self._lock:
            for setting in self._note_changes() if self._inside else ():
                self._before.pop(setting, None)  # the other thread's value stays
            changed = self._inside.pop(guard, None)
            if not self._inside:
                self._restore()
            return changed

    def leave_applied(self, *, on_cuda: bool) -> None:
        """Set what differs, and do not restore it unless another guard is entered now."""
        self.enter(self, on_cuda=on_cuda)
        with self._lock:
            del self._inside[self]
            if not self._inside:
                self._before = {}

    def _note_changes(self) -> list[Setting]:
        """Return the settings that differ. The guards inside have set them, so another thread did it."""
        differing = [setting for setting in self.settings if _read(setting) not in setting.allowed]
        if differing:
            change = f"{differing[0].name} ({_shown(differing[0])})"
            self._inside = dict.fromkeys(self._inside, change)
        return differing

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


_process = _Process()


def leave_applied(device: torch.device) -> None:
    """Give torch our settings, in this thread and in the process, for code outside a guard."""
    own_thread(device)
    _process.leave_applied(on_cuda=device.type == "cuda")


@contextmanager
def our_settings(device: torch.device) -> Iterator[None]:
    """Enter it in the thread that computes. Guards may be nested."""
    with without_contexts():
        own_thread(device)
        guard = object()
        try:
            _process.enter(guard, on_cuda=device.type == "cuda")
            yield
        finally:
            changed = _process.leave(guard)
    if changed is not None:
        raise ConfigError(
            f"{changed} was changed by another thread during this pass, so its bits are not guaranteed; "
            "change settings of torch between passes, or in another process"
        )
