"""Compile kernels without launching them, side by side in several processes.

For a process of its own that has no GPU: in it a kernel call compiles and does not launch. Triton
keeps what it compiles in its cache on disk, where the process that launches the kernel finds it.
The key there is made of the source, the argument types, the constants, the options and the GPU's
architecture, so it is the same as if the other process had compiled.
"""

import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from holdfast.numerics.backends.triton.launch import compute_capability

_log = logging.getLogger(__name__)
_WARP_SIZE = 32
_LONGEST = ("_attention_hopper",)  # 3 to 6 s; the others take 2 s at most

Compilation = Callable[[], Any]  # compiles one kernel and returns it
_compilations: list[Compilation] = []  # of this process; forked ones find them by number


def list_compilations(call_kernels: Callable[[], None]) -> list[Compilation]:
    """Return the compilations that these kernel calls need. From now on no call in this process launches."""
    driver.set_active(_NoGpu())
    listed = _Listed()

    def compile_instead(kernel: Any, grid: object) -> Callable[..., object]:
        listed.is_long = kernel.__name__ in _LONGEST
        return lambda *args, **kwargs: kernel.run(*args, grid=grid, warmup=True, **kwargs)

    KernelInterface.__getitem__ = compile_instead
    mode = triton.AsyncCompileMode(listed)
    mode.__enter__()
    try:
        call_kernels()
    finally:
        mode.raw_futures.clear()  # nothing to wait for
        mode.__exit__(None, None, None)
    return listed.compilations


def compile_side_by_side(compilations: list[Compilation], num_processes: int) -> None:
    """In so many forked processes. One that fails is left out: its kernel is compiled when it is
    launched, and reports the error."""
    # From both ends: the first ones are needed first, the last ones (of whole passes) take longest.
    both = (one for pair in zip(compilations, reversed(compilations), strict=True) for one in pair)
    _compilations[:] = islice(both, len(compilations))
    numbers = range(len(compilations))
    if num_processes <= 1:
        for number in numbers:
            _compile(number)
        return
    with multiprocessing.get_context("fork").Pool(min(num_processes, len(compilations))) as pool:
        for _ in pool.imap_unordered(_compile, numbers):
            pass


def _compile(number: int) -> None:
    try:
        kernel = _compilations[number]()
        CudaLauncher(kernel.src, kernel.metadata)
    except Exception:
        _log.debug("a kernel was not compiled ahead", exc_info=True)


class _NoGpu:
    """The parts of Triton's driver that compiling needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        major, minor = compute_capability()
        return GPUTarget("cuda", 10 * major + minor, _WARP_SIZE)


class _Listed(Executor):
    """Keeps what it should run, what takes longest first. Triton submits each compilation once."""

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []
        self.is_long = False  # the next one

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.compilations.insert(0 if self.is_long else len(self.compilations), fn)
        return Future()
