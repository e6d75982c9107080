"""New processes: one bit set each, with one thread, with another instruction set, and the same again after a restart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("pricking.py")


def _prick(kernels: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kernels],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("kernels", ["compiled", "library"])
@pytest.mark.parametrize(
    "environment", [{"OMP_NUM_THREADS": "1"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}], ids=lambda e: next(iter(e))
)
def test_one_answer_in_a_process_of_its_own(kernels: str, environment: dict[str, str]) -> None:
    lines = _prick(kernels, **environment).splitlines()
    assert len(lines) == 4
    assert all(line.split()[2] == "1" for line in lines)


def test_a_restart_changes_nothing() -> None:
    assert _prick("compiled") == _prick("compiled")
