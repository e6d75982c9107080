"""Damage to every file of the cache folder: a start ends with the same fingerprint and the same bits, and
the file is as before."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit
from typing import Any

import pytest
import torch

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.cache_dir import read_checked
from support.damage import DAMAGES

PARAMS = SamplingParams(
    max_tokens=8, temperature=0.8, seed=3, ignore_eos=True, deterministic=True, logprobs=2
)
PROMPTS = [[5, 6, 7], [9] * 40]
SETTINGS: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 32, "max_num_seqs": 4, "kernels": "c"}
_NOTICED = ("cut in half", "zeroed", "a folder with files")

Answer = tuple[Any, ...]


def start(model: Path) -> Answer:
    """Return the fingerprint of a new engine, and what it answers."""
    llm = LLM(str(model), **SETTINGS)
    answers = llm.generate(PROMPTS, PARAMS)
    return llm.engine.fingerprint.digest, [(one.token_ids, one.logprobs) for one in answers]


def files(folder: Path) -> dict[str, bytes]:
    """Return what is kept in a cache folder. How long a certification took is left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "aside":
            content = path.read_bytes()
            if path.suffix == ".json":
                fields = json.loads(content[: content.rindex(b"\n")])
                content = json.dumps({**fields, "seconds": 0}).encode()
            found[str(path.relative_to(folder))] = content
    return found


def unfinished(model: Path) -> None:
    """Leave the progress of a certification."""
    certification: Any = LLM(
        str(model), **SETTINGS, certification="background"
    ).engine.background._certification
    while certification.progress[0] < 3:
        certification.advance(0.0)
    certification.interrupt()


@pytest.mark.parametrize(
    "damage",
    [name if name in _NOTICED else pytest.param(name, marks=pytest.mark.long) for name in DAMAGES],
)
def test_damaged_certificates_change_nothing(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    open_backend(torch.float32, num_threads=1)  # builds the C kernels in the cache of the test session
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    unfinished(tiny_llama)
    (progress,) = (tmp_path / "certificates" / "unfinished").iterdir()
    DAMAGES[damage](progress)
    expected = start(tiny_llama)
    assert not progress.exists()
    whole = files(tmp_path)
    (certificate,) = (tmp_path / "certificates").glob("*.json")
    DAMAGES[damage](certificate)
    assert start(tiny_llama) == expected
    assert files(tmp_path) == whole


# Whole starts, whose kernels are compiled

_PRINT = """
import sys
from adversary.test_damaged_cache import start
print(start(sys.argv[1]))
"""


@dataclass
class Machine:
    """Starts engines in processes of their own, which have one cache folder."""

    model: Path
    cache: Path

    def begin(self, **popen: Any) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "HOLDFAST_CACHE_DIR": str(self.cache),
            "CC": "cc",  # no prebuilt kernels
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return subprocess.Popen(
            [sys.executable, "-c", _PRINT, str(self.model)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **popen,
        )

    def start(self) -> str:
        return answer_of(self.begin())

    @property
    def library(self) -> Path:
        (found,) = (self.cache / "kernels").glob("*.so")
        return found

    @property
    def certificate(self) -> Path:
        (found,) = (self.cache / "certificates").glob("*.json")
        return found


def answer_of(process: "subprocess.Popen[str]") -> str:
    out, error = process.communicate()
    assert process.returncode == 0, error
    return out


@pytest.fixture(scope="module")
def machine(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tiny_llama, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def expected(machine: Machine) -> str:
    return machine.start()


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_kernels_change_nothing(machine: Machine, expected: str, damage: str) -> None:
    library = machine.library
    DAMAGES[damage](library)
    assert machine.start() == expected
    assert machine.library == library and read_checked(library) is not None
    built = library.stat().st_mtime_ns
    assert machine.start() == expected
    assert library.stat().st_mtime_ns == built
    if library.is_symlink():
        library.with_name("aside").replace(library)


@pytest.mark.long
def test_starts_that_are_killed_change_nothing(machine: Machine, expected: str, tmp_path: Path) -> None:
    for seconds in (2, 5, 8, 11, 14, 18):
        other = Machine(machine.model, tmp_path / str(seconds))
        process = other.begin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert other.start() == expected
        assert read_checked(other.library) is not None and read_checked(other.certificate) is not None


@pytest.mark.long
def test_two_starts_at_once_change_nothing(machine: Machine, expected: str) -> None:
    for damage in ("missing", "zeroed", "cut in half"):
        DAMAGES[damage](machine.library)
        DAMAGES[damage](machine.certificate)
        assert [answer_of(one) for one in [machine.begin() for _ in range(2)]] == [expected] * 2
        assert read_checked(machine.library) is not None
        assert read_checked(machine.certificate) is not None


@pytest.mark.long
def test_full_disk_is_an_error_and_later_changes_nothing(
    machine: Machine, expected: str, tmp_path: Path
) -> None:
    for num_bytes in (1000, 100_000):
        other = Machine(machine.model, tmp_path / str(num_bytes))
        limit = (num_bytes, num_bytes)
        process = other.begin(preexec_fn=lambda limit=limit: setrlimit(RLIMIT_FSIZE, limit))
        _, error = process.communicate()
        assert process.returncode == 1 and "the kernels could not be built" in error
        assert other.start() == expected
