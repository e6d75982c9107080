"""The process-wide settings of torch that can reach a bit, and `Watch`, which sets and restores them.

A setting that this version of torch does not have is left out.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from holdfast.errors import ConfigError

_C: Any = torch._C
_UNREADABLE = object()  # torch refuses to report a precision that was set by two different functions
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


def cuda_settings() -> list[Setting]:
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


def cpu_watch() -> Watch:
    """A watch of the settings that reach a CPU's bits."""
    return Watch([*_MATMUL_PRECISION, *_MATMULS, *_OTHERS], _PARENTS)
