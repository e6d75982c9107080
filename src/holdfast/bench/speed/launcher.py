"""Run a command and print, as JSON, the time to its first byte of output and its peak memory.

This is a separate small program that imports nothing of Holdfast. On Linux, the peak memory of a
child includes what its parent held at the fork, and the process of the benchmark holds two engines.
"""

import json
import os
import subprocess
import sys
import tempfile
import time


def launch(command: list[str]) -> dict[str, float | str]:
    """Run the command to its end. stderr is returned for the case that it fails."""
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
