"""New processes: one bit set each, with one thread, with another instruction set; the same again after a restart, and with
other limits.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from stress_helpers import digests

PROGRAM = Path(__file__).with_name("stress_helpers.py")


def _prick(*arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("kernels", ["c", "torch"])
@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_NUM_THREADS": "1"},
        pytest.param(
            {"ONEDNN_MAX_CPU_ISA": "AVX2"},
            marks=pytest.mark.skipif(
                platform.machine() not in ("x86_64", "AMD64"), reason="a setting of x86"
            ),
        ),
    ],
    ids=lambda e: next(iter(e)),
)
def test_one_answer_in_a_process_of_its_own(kernels: str, environment: dict[str, str]) -> None:
    lines = _prick(kernels, "usual" if kernels == "c" else "narrow", **environment)
    assert len(lines) == 10
    assert all(line.split()[1] == "1" for line in lines)


def test_neither_a_restart_nor_other_limits_change_anything() -> None:
    """Fewer sequences, fewer pages, smaller chunks, no prefix cache; plain requests and combinations of features."""
    here = digests("c")
    assert all(line.split()[1] == "1" for line in here)
    assert _prick("c", "usual") == here
    assert _prick("c", "tight") == here
