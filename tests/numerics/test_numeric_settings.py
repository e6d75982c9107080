"""Numeric settings apply once per process; other values are refused.

Tested in child processes, because they last.
"""

import json
import os
import subprocess
import sys

import pytest

_CHILD = """
import json, torch
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.errors import ConfigError
first = apply_numeric_settings(1)
assert apply_numeric_settings(1) is first and apply_numeric_settings(None) is first
try:
    apply_numeric_settings(2)
except ConfigError as error:
    refused = str(error)
print(json.dumps([first.as_dict(), torch.get_num_threads(), refused]))
"""


def test_settings_cannot_change_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    settings, threads, refused = json.loads(done.stdout)
    assert settings["threads"] == threads == 1
    assert settings["matmul_precision"] == "highest"
    assert settings["environment"]["ONEDNN_MAX_CPU_ISA"] == "DEFAULT"
    assert "cannot change to 2" in refused


_THREADS = """
import ctypes, threading, torch
from pathlib import Path
from holdfast.numerics.settings import apply_numeric_settings, pin_threads
apply_numeric_settings(1)
openmp = ctypes.CDLL(next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line))
seen = []
def look(pin):
    if pin: pin_threads()
    seen.append(openmp.omp_get_max_threads())
for pin in (False, True):
    thread = threading.Thread(target=look, args=(pin,)); thread.start(); thread.join()
print(seen)
"""


def test_pin_threads_applies_the_settings_to_a_new_thread() -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("with one core every thread has one OpenMP thread")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True, env=environment
    )
    free, pinned = json.loads(done.stdout)
    assert free > 1  # the default of OpenMP
    assert pinned == 1
