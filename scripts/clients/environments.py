"""The clients' environments: which packages live together, and how they are installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Group:
    """Drivers whose clients share an environment, and what pip or npm installs for them."""

    name: str
    drivers: tuple[str, ...]
    packages: tuple[str, ...]
    npm: tuple[str, ...] = ()


GROUPS = (
    Group(
        "openai3",
        ("openai_sdk", "anthropic_sdk", "pydantic_ai_agent", "inspect_evals"),
        ("openai", "anthropic", "pydantic-ai-slim[openai]", "inspect-ai"),
    ),
    Group(
        "openai2",  # with openai 3, pip finds only old versions of these
        ("litellm_sdk", "langchain_sdk", "instructor_modes", "simonw_llm", "lm_eval_harness"),
        # litellm imports mcp as soon as tools are sent
        ("openai<3", "litellm", "mcp", "langchain-openai", "instructor", "llm", "lm-eval[api]"),
    ),
    Group(
        "torch",
        ("guidellm_load", "trl_rollouts"),
        ("torch>=2.11,<2.14", "guidellm", "trl", f"{REPOSITORY}[structured]"),
    ),
    Group("node", ("promptfoo_eval",), (), ("promptfoo",)),
)


class Unavailable(Exception):
    """A group cannot be installed here; the text says why."""


def install(group: Group, folder: Path, upgrade: bool, say: Callable[[str], None]) -> Path:
    """Make the group's environment, or reuse it. Returns the Python that runs its drivers."""
    home = folder / group.name
    done = home / ".installed"
    if done.exists() and not upgrade:
        return _python(home)
    if group.npm and shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    say(f"installing {', '.join(group.packages or group.npm)}")
    _command([sys.executable, "-m", "venv", home])
    if group.packages:
        pip = [_python(home), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
        _command([*pip, *group.packages])
    if group.npm:
        _command(["npm", "install", "--no-audit", "--no-fund", "--prefix", home, *group.npm])
    done.touch()
    return _python(home)


def variables(group: Group, folder: Path) -> dict[str, str]:
    """The environment variables its drivers run with. Nothing is asked of the network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **offline, "PROMPTFOO_FOLDER": str(folder / group.name)}


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _command(command: list[str | Path]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, command))} failed:\n{done.stderr[-1500:]}")
