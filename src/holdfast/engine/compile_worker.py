"""The process that compiles the kernels of an engine ahead (`compile_ahead.py`).

Its standard input holds the task, and ends with the process that wants the kernels.
"""

import os
import pickle
import sys
import threading

from holdfast.engine.compile_ahead import CompileTask, in_thread
from holdfast.numerics.backends.triton import hash_compiler


def main() -> None:
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
