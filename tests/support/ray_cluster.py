"""Ray clusters for tests, in processes of their own."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent


class Cluster:
    """A cluster with a number of CPUs that exist on paper."""

    def __init__(self, environment: dict[str, str], address: str) -> None:
        self.environment = environment
        self.address = address

    def run(self, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT,
        )  # fmt: skip


def end(process: "subprocess.Popen[str]") -> None:
    """End a process and all that it started."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=10)
    if process.stdout is not None:
        process.stdout.close()
