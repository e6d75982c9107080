"""Stress tests in new processes: one result with one thread and with another instruction set; the
same bits after a restart and with other limits.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stress_helpers import digests

PROGRAM = Path(__file__).with_name("stress_helpers.py")


def _run_process(*arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


ONE_THREAD, AVX2 = {"OMP_NUM_THREADS": "1"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}
IS_X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.mark.parametrize(
    ("kernels", "environment"),
    [
        ("torch", {**ONE_THREAD, **AVX2} if IS_X86 else ONE_THREAD),
        pytest.param("c", ONE_THREAD, marks=pytest.mark.long),
        *(pytest.param(kernels, AVX2, marks=pytest.mark.long) for kernels in ("c", "torch") if IS_X86),
    ],
    ids=str,
)
def test_one_result_per_process(kernels: str, environment: dict[str, str]) -> None:
    lines = _run_process(kernels, "usual" if kernels == "c" else "narrow", **environment)
    assert len(lines) == (10 if kernels == "c" else 5)
    assert all(line.split()[1] == "1" for line in lines)


def test_restart_other_limits_and_threads_do_not_change_results() -> None:
    """Fewer requests, fewer pages, smaller chunks, no prefix cache, another number of threads; plain
    requests and combinations of features.
    """
    here = digests("c")
    assert all(line.split()[1] == "1" for line in here)
    threads = 2 if torch.get_num_threads() == 1 else 1
    assert _run_process("c", "tight", OMP_NUM_THREADS=str(threads)) == here
