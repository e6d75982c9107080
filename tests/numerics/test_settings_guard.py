"""Inside a guard every setting is ours; after it the caller has its own again, but those of the thread."""

import ctypes
import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from holdfast.errors import ConfigError
from holdfast.numerics import settings_guard
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.backends.torch import settings_guard as guard
from holdfast.numerics.backends.torch.settings_guard import (
    Setting,
    _of_gpus,
    _Process,
    compute_by_default,
    our_settings,
)
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings import numeric_settings

CPU = torch.device("cpu")
CUDA = torch.backends.cuda.matmul


def _fp32(backend: str, operation: str) -> Any:
    return torch._C._get_fp32_precision_getter(backend, operation)  # type: ignore[attr-defined]


def _state() -> dict[str, Any]:
    """Everything a guard may change and must restore, but the modes. A hostile setting that is missing here is
    noticed: the state must differ by it."""
    return {
        **{one.name: guard._read(one) for one in guard._process.settings},
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "device": torch.get_default_device(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    }


def _effective(state: dict[str, Any]) -> dict[str, Any]:
    """The state less what has no effect inside a guard."""
    return {name: value for name, value in state.items() if name not in ("device", "warn only")}


@pytest.fixture
def ours() -> Iterator[dict[str, Any]]:
    """The state inside a guard. Undoes whatever a test has set."""
    numeric_settings()
    torch.set_float32_matmul_precision("highest")
    with our_settings(CPU):
        inside = _state()
    yield inside
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    torch.backends.mkldnn.deterministic = False  # type: ignore[assignment]
    torch.use_deterministic_algorithms(False)
    torch._C._set_cpu_allow_fp16_reduced_precision_reduction(False)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    assert _state() == inside


def _set_matmul_fp32(backend: str) -> None:
    torch._C._set_fp32_precision_setter(backend, "matmul", "tf32")  # type: ignore[attr-defined]


HOSTILE: dict[str, Callable[[], Any]] = {
    "matmul precision medium": lambda: torch.set_float32_matmul_precision("medium"),
    "matmul precision high": lambda: torch.set_float32_matmul_precision("high"),
    "fp32 precision of cuda": lambda: _set_matmul_fp32("cuda"),
    "fp32 precision of mkldnn": lambda: _set_matmul_fp32("mkldnn"),
    "allow_tf32": lambda: torch._C._set_cublas_allow_tf32(True),
    "mkldnn off": lambda: torch._C._set_mkldnn_enabled(False),
    "mkldnn deterministic": lambda: torch._C._set_mkldnn_deterministic(True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
}


def _sum_in_fp16() -> None:
    torch._C._set_cpu_allow_fp16_reduced_precision_reduction(True)


try:
    _sum_in_fp16()
    torch._C._set_cpu_allow_fp16_reduced_precision_reduction(False)
    HOSTILE["fp16 sums"] = _sum_in_fp16
except RuntimeError:  # this CPU has no fp16 arithmetic
    pass


@pytest.mark.parametrize("name", HOSTILE)
def test_setting_is_ours_inside_and_the_callers_after(name: str, ours: dict[str, Any]) -> None:
    HOSTILE[name]()
    theirs = _state()
    assert theirs != ours
    with our_settings(CPU):
        inside = _state()
        assert torch.zeros(2).sum().item() == 0.0  # not on the meta device
    assert _effective(inside) == _effective(ours)
    assert _state() == theirs
    with pytest.raises(ZeroDivisionError), our_settings(CPU):
        _ = 1 / 0
    assert _state() == theirs


def test_all_settings_at_once_and_nested_guards(ours: dict[str, Any]) -> None:
    for change in HOSTILE.values():
        change()
    theirs = _state()
    with our_settings(CPU), our_settings(CPU):
        assert _effective(_state()) == _effective(ours)
    assert _state() == theirs


def test_inherited_precision_stays_inherited(ours: dict[str, Any]) -> None:
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")  # type: ignore[attr-defined]
    torch._C._set_fp32_precision_setter("cuda", "matmul", "none")  # type: ignore[attr-defined]
    torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
    assert _fp32("cuda", "matmul") == "tf32"
    with our_settings(CPU):
        assert _fp32("cuda", "matmul") in ("none", "ieee")
    assert _fp32("cuda", "matmul") == "tf32"
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    assert _fp32("cuda", "matmul") == "none"


def test_autocast_is_off_inside(ours: dict[str, Any]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with our_settings(CPU):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
            assert _state() == ours
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_modes_are_off_inside(ours: dict[str, Any]) -> None:
    with torch.device("meta"), FakeTensorMode():
        with our_settings(CPU):
            assert torch.full((2,), 3.0).tolist() == [3.0, 3.0]
        assert torch.zeros(2).device.type == "meta"
        assert type(torch.zeros(2)).__name__ == "FakeTensor"


def test_last_of_two_threads_restores(ours: dict[str, Any]) -> None:
    """A guard that ends first must not restore the caller's precision under the other one."""
    torch.set_float32_matmul_precision("medium")
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with our_settings(CPU):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(60)
    with our_settings(CPU):
        assert torch.get_float32_matmul_precision() == "highest"
        leave.set()
        thread.join()
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


def _in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_change_by_another_thread_is_refused_by_name(ours: dict[str, Any]) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"set_float32_matmul_precision .high. was changed by another thread"
        ),
        our_settings(CPU),
    ):
        _in_thread(lambda: torch.set_float32_matmul_precision("high"))
    assert torch.get_float32_matmul_precision() == "high"  # the other thread's value stays
    with our_settings(CPU):
        assert torch.get_float32_matmul_precision() == "highest"


def test_change_is_refused_also_if_a_third_guard_has_corrected_it(ours: dict[str, Any]) -> None:
    def change_and_enter() -> None:
        torch.set_default_dtype(torch.float64)
        with our_settings(CPU):
            pass

    with pytest.raises(ConfigError, match="set_default_dtype"), our_settings(CPU):
        _in_thread(change_and_enter)
    assert torch.get_default_dtype() == torch.float64
    with our_settings(CPU):
        pass


def _shared(settings: list[Setting]) -> _Process:
    process = _Process()
    process.settings = settings
    return process


def test_setting_that_cannot_be_set_is_refused_by_name() -> None:
    value = ["theirs"]
    shared = _shared([Setting("the colour", lambda: value[0], None, ("ours",))])
    with pytest.raises(ConfigError, match=r"the colour is theirs, .* it must be ours"):
        shared.enter("guard", on_cuda=False)
    value[0] = "ours"
    shared.enter("guard", on_cuda=False)
    assert shared.leave("guard") is None


def test_gpu_settings_are_guarded_without_a_gpu() -> None:
    shared = _shared(_of_gpus())
    reduced, accumulation = "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation"
    before = getattr(CUDA, reduced), getattr(CUDA, accumulation)
    try:
        setattr(CUDA, reduced, True)
        setattr(CUDA, accumulation, True)
        shared.enter("guard", on_cuda=False)
        assert not getattr(CUDA, reduced) and not getattr(CUDA, accumulation)
        assert shared.leave("guard") is None
        assert getattr(CUDA, reduced) and getattr(CUDA, accumulation)
    finally:
        setattr(CUDA, reduced, before[0])
        setattr(CUDA, accumulation, before[1])


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
        with our_settings(CPU):
            made = torch.arange(3)
            found.append((made.numpy().tolist(), made.data_ptr() != 0, type(made.shape[0])))
        return x * 2

    TRANSFORMS[name](function)
    assert found[0] == ([0, 1, 2], True, int)


# Of the thread, which keeps them

THREADS = 2  # enough to have a worker

needs_glibc = pytest.mark.skipif(guard.fesetenv is None, reason="needs glibc on x86-64 or Arm")


@pytest.fixture
def restored() -> Iterator[None]:
    """The default environment before and after a test, in this thread and its workers."""
    numeric_settings()
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    guard.enter_default_environment()
    guard.own_workers(THREADS)
    yield
    guard.enter_default_environment()
    guard.own_workers(THREADS)
    torch.set_num_threads(threads)


def _flush() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")


def _round_up() -> None:
    upward = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
    assert ctypes.CDLL(None).fesetround(upward) == 0


CHANGES = pytest.mark.parametrize("change", [_flush, _round_up])


def _make_workers(change: Callable[[], None]) -> None:
    """Give the workers another environment, and this thread the default one."""
    change()
    changed = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).fegetenv(changed)
    address = ctypes.cast(guard.fesetenv, ctypes.c_void_p)
    guard._run_in_workers(address, ctypes.addressof(changed), THREADS, 0)
    guard.enter_default_environment()


@needs_glibc
@CHANGES
def test_thread_and_workers_compute_in_the_default_environment(
    change: Callable[[], None], restored: None
) -> None:
    def enter() -> None:
        torch.set_num_threads(THREADS)
        _make_workers(change)
        assert not compute_by_default(THREADS)
        change()
        with our_settings(CPU):
            assert compute_by_default(THREADS)
        change()
        with our_settings(CPU):
            assert compute_by_default(THREADS)
        assert compute_by_default(THREADS)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(enter).result()


def _enter() -> None:
    with our_settings(CPU):
        assert compute_by_default(THREADS)


@needs_glibc
@CHANGES
@pytest.mark.parametrize("has_glibc", [True, False])
def test_new_thread_does_not_keep_the_environment_of_its_creator(
    change: Callable[[], None], has_glibc: bool, restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without glibc, torch switches the flushing off; another rounding mode is refused."""
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        if not has_glibc:
            for module in (guard, settings_guard):
                patch.setattr(module, "fesetenv", None)
        change()
        entered = pool.submit(_enter)
        if has_glibc or change is _flush:
            entered.result()
        else:
            with pytest.raises(ConfigError, match="start a new process"):
                entered.result()


def test_number_of_threads_is_ours_and_not_dynamic(restored: None) -> None:
    """Dynamic threads are switched off once in each thread."""
    openmp = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))

    def enter() -> None:
        openmp.omp_set_dynamic(1)
        for _ in range(2):
            torch.set_num_threads(torch.get_num_threads() + 1)
            with our_settings(CPU):
                assert torch.get_num_threads() == numeric_settings().threads
                assert not openmp.omp_get_dynamic()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(enter).result()


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
@CHANGES
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
    assert not compute_by_default(1)  # the kernels have restored the caller's
    for found in (with_workers, with_thread):
        assert all(torch.equal(out, again) for out, again in zip(expected, found, strict=True))
