"""What a driver is, and the program that runs one driver in its client's environment.

A driver is a module in `drivers/` with

    CLIENT             the client's distribution: its name and installed version are reported
    check_*(target)    one thing a user does with it; the docstring's first line says what; raises if it fails
    ask*(target, prompt, seed)    one chat answer, at TEMPERATURE, of at most MAX_TOKENS tokens
    ask*(target, prompt)          the same through an API that has no seed: the server's default seed

    python checks.py --driver openai_sdk --url http://127.0.0.1:8000 --model smollm2 check
    python checks.py --driver openai_sdk --url http://127.0.0.1:8000 --model smollm2 ask --rounds 3

prints one JSON object a line, and nothing else, on standard output.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
TEMPERATURE = 0.8
MAX_TOKENS = 16
PROMPTS = ("Name three rivers of Europe.", "Why is the sea salt?")
SEEDS = (0, 7)  # 0 is the server's default seed


@dataclass(frozen=True)
class Target:
    """The server that is driven."""

    url: str
    model: str

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Check:
    """One check of a driver."""

    name: str
    says: str
    run: Callable[[Target], None]


def checks_of(driver: ModuleType) -> list[Check]:
    """The driver's checks, in the order they are written."""
    found = [one for name, one in vars(driver).items() if name.startswith("check_")]
    return [Check(one.__name__, (one.__doc__ or one.__name__).strip().splitlines()[0], one) for one in found]


def run_recipe(heading: str, target: Target) -> None:
    """Run the Python of a section of docs/recipes.md, with this server's address and model."""
    page = (HERE.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert blocks, heading
    names: dict[str, Any] = {"__name__": "recipe"}
    for block in blocks:
        text = block.replace("http://127.0.0.1:8000", target.url).replace("smollm2", target.model)
        exec(compile(text, heading, "exec"), names)


def load(name: str) -> ModuleType:
    """The driver of that name."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return importlib.import_module(f"drivers.{name}")


def answers_of(driver: ModuleType, target: Target) -> Iterator[dict[str, Any]]:
    """One answer for each way of asking, prompt and seed."""
    for name, ask in vars(driver).items():
        if not name.startswith("ask"):
            continue
        seedless = "seed" not in inspect.signature(ask).parameters
        for prompt in PROMPTS:
            for seed in SEEDS[:1] if seedless else SEEDS:
                text = ask(target, prompt) if seedless else ask(target, prompt, seed)
                yield {"way": name, "prompt": prompt, "seed": seed, "text": text}


def version_of(driver: ModuleType) -> str:
    """The client's installed version. A client that is no Python package has its own function."""
    own: Callable[[], str] | None = getattr(driver, "version", None)
    return own() if own is not None else importlib.metadata.version(driver.CLIENT)


def run_checks(driver: ModuleType, target: Target) -> Iterator[dict[str, Any]]:
    yield {"client": driver.CLIENT, "version": version_of(driver)}
    for check in checks_of(driver):
        started = time.monotonic()
        error = None
        try:
            check.run(target)
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt):
                raise
            traceback.print_exc()
            error = (f"{type(failure).__name__}: {failure}").strip()
        yield {"check": check.name, "says": check.says, "seconds": time.monotonic() - started, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("what", choices=["check", "ask"])
    given = parser.parse_args()
    target = Target(given.url, given.model)
    report = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        driver = load(given.driver)
        for _ in range(given.rounds):
            lines = run_checks(driver, target) if given.what == "check" else answers_of(driver, target)
            for line in lines:
                print(json.dumps(line), file=report, flush=True)


if __name__ == "__main__":
    main()
