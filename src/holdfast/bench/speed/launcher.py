"""Starts a command and says, as JSON, when its first byte came and how much memory it held at most.

A small process of its own, run by its path and importing nothing of Holdfast: Linux counts into a child's peak what its
parent held when it was started, and the benchmark's own process holds two engines.
"""

import json
import os
import subprocess
import sys
import tempfile
import time


def launch(command: list[str]) -> dict[str, float | str]:
    """Run the command to its end. Its stderr is kept for the case that it fails."""
    with tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        child = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
        assert child.stdout is not None
        with child.stdout as stdout:
            stdout.read(1)
            seconds = time.perf_counter() - started
            stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        complaint = stderr.read()[-2000:].decode(errors="replace")
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "returncode": child.returncode,
        "first_byte_seconds": seconds,
        "peak_resident_bytes": usage.ru_maxrss * unit,
        "stderr": complaint,
    }


if __name__ == "__main__":
    print(json.dumps(launch(sys.argv[1:])))
