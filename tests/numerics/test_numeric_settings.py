"""Numeric settings apply once per process; other values are refused. Tested in a child process."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

_CHILD = """
import ctypes, json, threading, torch
from pathlib import Path
from holdfast.errors import ConfigError
from holdfast.numerics.settings import apply_numeric_settings, pin_threads

first = apply_numeric_settings(1)
assert apply_numeric_settings(1) is first and apply_numeric_settings(None) is first
try:
    apply_numeric_settings(2)
except ConfigError as error:
    refused = str(error)

maps = Path("/proc/self/maps").read_text().splitlines()
openmp = ctypes.CDLL(next(line.split()[-1] for line in maps if "gomp" in line))
num_threads = []
def look(pin):
    if pin: pin_threads()
    num_threads.append(openmp.omp_get_max_threads())
for pin in (False, True):
    thread = threading.Thread(target=look, args=(pin,)); thread.start(); thread.join()
print(json.dumps([first.as_dict(), torch.get_num_threads(), refused, num_threads]))
"""


@pytest.fixture(scope="module")
def child() -> list[Any]:
    """The settings, torch's threads, the error, and OpenMP's threads in a new and a pinned thread."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment["ONEDNN_MAX_CPU_ISA"] = "DEFAULT"
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True, env=environment
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_settings_cannot_change_in_one_process(child: list[Any]) -> None:
    settings, threads, refused, _ = child
    assert settings["threads"] == threads == 1
    assert settings["matmul_precision"] == "highest"
    assert settings["environment"]["ONEDNN_MAX_CPU_ISA"] == "DEFAULT"
    assert "cannot change to 2" in refused


def test_pin_threads_applies_the_settings_to_a_new_thread(child: list[Any]) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("with one core every thread has one OpenMP thread")
    free, pinned = child[3]
    assert free > 1  # the default of OpenMP
    assert pinned == 1
