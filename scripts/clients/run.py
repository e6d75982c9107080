"""Drive real clients, at their current versions, against `holdfast serve --deterministic`.

    python scripts/clients/run.py                      # every client, with the default model
    python scripts/clients/run.py --only openai_sdk,lm_eval_harness

Each group of clients gets an environment of its own in `--environments`; a second run reuses it,
`--upgrade` brings it to the current versions. Then all clients ask the same prompts at once, and
each prompt and seed must have one answer, whichever client and API asked. Exit code 0: all passed.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from environments import GROUPS, REPOSITORY, Group, Unavailable, install, variables

HERE = Path(__file__).parent
_READY_SECONDS = 600
_DRIVER_SECONDS = 1800


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    client: str
    version: str
    tried: str
    seconds: float
    error: str | None

    def __str__(self) -> str:
        verdict = "passed" if self.error is None else "FAILED"
        line = f"{self.client:18} {self.version:10} {verdict}  {self.seconds:6.1f} s  {self.tried}"
        return line if self.error is None else f"{line}\n    {self.error[:600]}"


@dataclass(frozen=True)
class Driver:
    """A driver, with the Python that runs it."""

    name: str
    group: Group
    python: Path
    folder: Path

    @property
    def asks(self) -> bool:
        """Whether it takes part in the load of all clients."""
        return "\ndef ask" in (HERE / "drivers" / f"{self.name}.py").read_text()

    def start(self, url: str, model: str, what: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start `checks.py`. What the client itself writes goes to a log in the folder."""
        command = [self.python, HERE / "checks.py", "--driver", self.name, "--url", url, "--model", model]
        with (self.folder / f"{self.name}.log").open("a") as log:
            return subprocess.Popen(
                [*command, *arguments, what],
                env=variables(self.group, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


@contextlib.contextmanager
def served(arguments: list[str], log: Path) -> Iterator[str]:
    """A deterministic server on a free port; its address."""
    command = [sys.executable, "-m", "holdfast", "serve", "--deterministic", "--port", "0", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=REPOSITORY)
    try:
        until = time.monotonic() + _READY_SECONDS
        while "Ready after" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start:\n{text}")
            time.sleep(0.2)
        found = re.search(r"Listening on (http://\S+?);", text)
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


def lines_of(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """What a driver prints, as it comes. The process is killed if it takes too long."""
    assert process.stdout is not None
    killer = threading.Timer(_DRIVER_SECONDS, process.kill)
    killer.start()
    try:
        for line in process.stdout:
            yield json.loads(line)
        process.wait()
    finally:
        killer.cancel()


def check(driver: Driver, url: str, model: str) -> Iterator[Row]:
    """The rows of one driver."""
    started = time.monotonic()
    process = driver.start(url, model, "check")
    client, version, count = driver.name, "", 0
    for line in lines_of(process):
        if "client" in line:
            client, version = line["client"], line["version"]
            continue
        count += 1
        yield Row(client, version, line["says"], line["seconds"], line["error"])
    if process.returncode or not count:
        error = f"the driver ended with code {process.returncode}; see {driver.folder / driver.name}.log"
        yield Row(client, version, "driver", time.monotonic() - started, error)


def one_answer(drivers: list[Driver], url: str, model: str, rounds: int) -> Iterator[Row]:
    """All clients ask at once; one row for each prompt and seed."""
    started = time.monotonic()
    running = {driver.name: driver.start(url, model, "ask", "--rounds", str(rounds)) for driver in drivers}
    answers: dict[tuple[str, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, process in running.items():
        lines = list(lines_of(process))
        for line in lines:
            answers[line["prompt"], line["seed"]][line["text"]].add(f"{name}.{line['way']}")
        if process.returncode or not lines:
            error = f"exit code {process.returncode}, {len(lines)} answers"
            yield Row(name, "", "ask beside all others", time.monotonic() - started, error)
    for (prompt, seed), texts in sorted(answers.items()):
        ways = sum(map(len, texts.values()))
        error = None if len(texts) == 1 else repr({text: sorted(names) for text, names in texts.items()})
        tried = f"{prompt!r}, seed {seed}: {len(texts)} answer to {ways} ways of asking, {rounds} times each"
        yield Row("all at once", "", tried, time.monotonic() - started, error)


def report(row: Row, output: TextIO) -> bool:
    print(row, file=output, flush=True)
    return row.error is None


def drivers_of(only: set[str], folder: Path, upgrade: bool) -> Iterator[Driver | Row]:
    """The drivers asked for, installed; a row for a group that cannot be."""
    for group in GROUPS:
        wanted = [name for name in group.drivers if not only or name in only]
        if not wanted:
            continue
        started = time.monotonic()
        try:
            python = install(group, folder, upgrade, lambda text: print(f"# {text}", flush=True))
        except Unavailable as why:
            yield Row(", ".join(wanted), "", "install", time.monotonic() - started, str(why))
            continue
        yield from (Driver(name, group, python, folder) for name in wanted)


def main() -> int:
    known = [name for group in GROUPS for name in group.drivers]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of {', '.join(known)}")
    parser.add_argument("--environments", type=Path, default=REPOSITORY / "build" / "clients")
    parser.add_argument("--upgrade", action="store_true", help="install again, at the current versions")
    parser.add_argument("--model", default="smollm2", help="the name the server gives its model")
    parser.add_argument("--rounds", type=int, default=2, help="how often every client asks each prompt")
    parser.add_argument("serve", nargs="*", help="arguments of holdfast serve, after --")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    if only - set(known):
        parser.error(f"no such driver: {', '.join(sorted(only - set(known)))}; known: {', '.join(known)}")
    folder: Path = given.environments.resolve()
    folder.mkdir(parents=True, exist_ok=True)

    passed, drivers = True, []
    for found in drivers_of(only, folder, given.upgrade):
        if isinstance(found, Driver):
            drivers.append(found)
        else:
            passed &= report(found, sys.stdout)
    with served(given.serve, folder / "server.log") as url:
        for driver in drivers:
            for row in check(driver, url, given.model):
                passed &= report(row, sys.stdout)
        for row in one_answer([one for one in drivers if one.asks], url, given.model, given.rounds):
            passed &= report(row, sys.stdout)
    print("all passed" if passed else "some FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
