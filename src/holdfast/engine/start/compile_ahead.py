"""Compile the GPU kernels of an engine ahead, in other processes, while this one prepares.

    this process   [ import torch ] [ search GEMM recipes ]  wait  [ canary ] [ weights ] ...
    worker         [ import torch ] [ list kernels ] [ compile, one process for each core ]

Triton compiles a kernel when it is first launched, one after the other: 17 s of CPU time for 50
kernels. The worker is this module, run as a program; it needs no GPU and fills Triton's cache on
disk. It is started before this process imports torch, which takes seconds, so this module does not
import it. It is not started if its work was done before, or with a single core. If it fails or
cannot be started, kernels are compiled when they are launched.
"""

import hashlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.config import EngineConfig, dtype_name
from holdfast.models.config import DecoderConfig
from holdfast.numerics.backends.triton import hash_compiler
from holdfast.numerics.cache_dir import cache_dir, read_checked, write_checked
from holdfast.numerics.versions import sources_digest
from holdfast.receipts.machine import library_version
from holdfast.worker.device import compute_capability, open_context

_log = logging.getLogger(__name__)
_MAX_PROCESSES = 16
_TIMEOUT_SECONDS = 60
COMPILE_FOR = "HOLDFAST_COMPILE_FOR"  # read by `numerics/backends/triton/launch.py`


@dataclass(frozen=True)
class CompileTask:
    """What the worker compiles: the kernels of models of this shape."""

    model: DecoderConfig
    dtype: str  # such as bfloat16
    num_processes: int


class CompileWorker:
    """A running worker, or none."""

    def __init__(self, process: "subprocess.Popen[bytes] | None" = None, done: Path | None = None) -> None:
        self._process = process
        self._done = done  # a file that says so

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        if self._process is None:
            return
        try:
            status = self._process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        if status == 0 and self._done is not None:
            with suppress(OSError):
                write_checked(self._done, b"")
        elif status != 0:
            _log.debug("kernels were not compiled ahead: the worker's status is %s", status)

    def close(self) -> None:
        """End the worker, whatever it does."""
        if self._process is None:
            return
        self._process.kill()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def compile_ahead(config: EngineConfig, model: DecoderConfig) -> CompileWorker:
    """Start compiling the kernels of this engine, if it will run on a GPU, and open the GPU. The caller
    closes the worker."""
    capability = compute_capability(config.device, config.kernels)
    if capability is None:
        return CompileWorker()
    in_thread(lambda: open_context(config.device))
    in_thread(hash_compiler)
    dtype = dtype_name(config.dtype, model.torch_dtype)
    return start_worker(model, dtype, capability, num_processes=_num_cores() - 1)


def start_worker(
    model: DecoderConfig, dtype: str, capability: tuple[int, int], *, num_processes: int
) -> CompileWorker:
    """Start a worker, unless its work was done before or would not help. dtype: such as bfloat16."""
    task = CompileTask(model, dtype, min(num_processes, _MAX_PROCESSES))
    done = _done_file(task, capability)
    is_done = read_checked(done) is not None and _triton_cache().is_dir()
    if num_processes < 1 or not sys.executable or is_done:
        return CompileWorker()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_VISIBLE_DEVICES": "",  # a context on the GPU would take its memory
        COMPILE_FOR: ".".join(map(str, capability)),
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.engine.start.compile_ahead"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None if _log.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
        )
    except OSError as error:
        _log.debug("kernels are not compiled ahead: %s", error)
        return CompileWorker()
    assert process.stdin is not None
    with suppress(OSError):  # it has ended
        process.stdin.write(pickle.dumps(task))
        process.stdin.flush()
    return CompileWorker(process, done)


def in_thread(work: Callable[[], object]) -> None:
    """Run something that saves time and decides nothing, while this thread imports torch."""

    def run() -> None:
        with suppress(Exception):
            work()

    threading.Thread(target=run, name="holdfast-ahead", daemon=True).start()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _triton_cache() -> Path:
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def _done_file(task: CompileTask, capability: tuple[int, int]) -> Path:
    """Name a file by a hash of all that the compiled kernels depend on, and of where they are."""
    libraries = [library_version(name) for name in ("torch", "triton")]
    content = repr((task.model, task.dtype, capability, sources_digest(), libraries, str(_triton_cache())))
    return cache_dir() / "kernels" / hashlib.sha256(content.encode()).hexdigest()


def main() -> None:
    """Compile the task on standard input, which ends with the process that wants the kernels."""
    in_thread(hash_compiler)
    import torch

    from holdfast.certification.every_kernel import call_every_kernel
    from holdfast.numerics.backends.triton.compile_only import compile_side_by_side, list_compilations

    task: CompileTask = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compilations = list_compilations(lambda: call_every_kernel(task.model, getattr(torch, task.dtype)))
    compile_side_by_side(compilations, task.num_processes)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock forked processes would inherit
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
