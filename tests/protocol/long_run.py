"""Many random schedules, over several processes:

    python tests/protocol/long_run.py --schedules 100000 --jobs 14

Each process runs the protocol tests with its own Hypothesis seed, so all schedules differ. Prints
progress, and at the end one line of JSON. Exits with 1 if a schedule failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

_HERE = Path(__file__).parent
_PER_PROCESS = 2000  # schedules; more would show progress too seldom
_COUNT = re.compile(r"examples\((\d+)\)")


def schedules_per_unit() -> int:
    """Random schedules of all protocol tests at HOLDFAST_TEST_SCALE=1."""
    return sum(int(count) for file in _HERE.glob("test_*.py") for count in _COUNT.findall(file.read_text()))


def run_part(seed: int, scale: float) -> tuple[int, int, str]:
    """(seed, exit code, the end of the output) of one process."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_HERE)),
            *("-m", "not long", f"--hypothesis-seed={seed}"),
        ],
        env={**os.environ, "HOLDFAST_TEST_SCALE": str(scale)},
        capture_output=True,
        text=True,
        check=False,
    )
    return seed, done.returncode, done.stdout[-4000:]


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules of the protocol tests.")
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first process.")
    given = parser.parse_args()
    unit, started = schedules_per_unit(), time.monotonic()
    num_parts = max(given.jobs, -(-given.schedules // _PER_PROCESS))
    scale = -(-given.schedules * 1000 // (num_parts * unit)) / 1000  # rounded up
    failed: list[int] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        parts = [pool.submit(run_part, given.seed + number, scale) for number in range(num_parts)]
        for number, part in enumerate(as_completed(parts), 1):
            seed, code, output = part.result()
            print(f"{number} of {num_parts} processes", file=sys.stderr, flush=True)
            if code != 0:
                failed.append(seed)
                print(output, file=sys.stderr)
    report = {
        "schedules": num_parts * int(unit * scale),
        "processes": num_parts,
        "failed_seeds": failed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
