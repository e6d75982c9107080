"""The hostile clients, in a process of their own: `with Attacker() as attacker: attacker.begin(...)`.

The process has the lowest priority: hostile clients have CPUs of their own, so its own work must take
little of the CPU time that is measured.
Each line on its stdin is a command; an empty line ends the attack that runs.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from abuse.attack import run_attack
from abuse.attacks import ATTACKS
from abuse.wire import Target

TESTS = Path(__file__).parents[1]
_NICENESS = 19


class Attacker:
    """The process as the measuring program sees it."""

    def __enter__(self) -> "Attacker":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "abuse.attacker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, name: str, targets: list[Target], num_clients: int, seconds: float) -> None:
        """Start an attack. It ends after so many seconds, or with `end`."""
        self._write(
            {
                "name": name,
                "targets": [asdict(target) for target in targets],
                "num_clients": num_clients,
                "seconds": seconds,
            }
        )
        self._read()

    def end(self) -> Counter[int]:
        """End the attack: every client disconnects. How often each status came."""
        self._write(None)
        return Counter({int(status): num for status, num in self._read().items()})

    def _write(self, command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the attacking process ended"
        return json.loads(line)


async def _serve() -> None:
    """Run the attacks that stdin names, one after the other."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = json.loads(line)
        targets = [Target(**target) for target in command["targets"]]
        attack, stop = ATTACKS[command["name"]], asyncio.Event()
        running = asyncio.ensure_future(
            run_attack(attack, targets, command["num_clients"], command["seconds"], stop)
        )
        print("{}", flush=True)
        await lines.readline()
        stop.set()
        print(json.dumps(await running), flush=True)


if __name__ == "__main__":
    os.nice(_NICENESS)
    asyncio.run(_serve())
