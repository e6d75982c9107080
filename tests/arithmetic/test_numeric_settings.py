"""Settings are made once: the same again is fine, others are refused. In a child process, because they
last."""

import json
import subprocess
import sys

import pytest

_CHILD = """
import json, torch
from holdfast.arithmetic.settings import apply_numeric_settings
from holdfast.errors import ConfigError
first = apply_numeric_settings(1)
assert apply_numeric_settings(1) is first and apply_numeric_settings(None) is first
try:
    apply_numeric_settings(2)
except ConfigError as error:
    refused = str(error)
print(json.dumps([first.as_dict(), torch.get_num_threads(), refused]))
"""


def test_settings_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    settings, threads, refused = json.loads(done.stdout)
    assert settings["threads"] == threads == 1
    assert settings["matmul_precision"] == "highest"
    assert settings["isa_environment"] == {"ONEDNN_MAX_CPU_ISA": "DEFAULT"}
    assert "cannot change to 2" in refused
