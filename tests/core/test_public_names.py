"""What a user sees of the package: its names, and no torch before it is needed."""

import subprocess
import sys

import pytest

import holdfast


def test_dir_shows_the_public_names() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert not [name for name in dir(holdfast) if not name.startswith("__") and name not in holdfast.__all__]
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'llm'"):
        holdfast.llm  # noqa: B018


def test_listing_the_names_imports_no_torch() -> None:
    program = "import sys, holdfast; dir(holdfast); holdfast.SamplingParams(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


FLOORS = """
import importlib, pkgutil, sys
import holdfast, holdfast.core, holdfast.kv_cache, holdfast.scheduler
for floor in (holdfast.core, holdfast.kv_cache, holdfast.scheduler):
    for module in pkgutil.iter_modules(floor.__path__):
        importlib.import_module(f"{floor.__name__}.{module.name}")
loaded = [name for name in ("torch", "numpy") if name in sys.modules]
print(len([name for name in sys.modules if name.startswith("holdfast.")]), loaded)
"""


def test_core_kv_cache_and_scheduler_import_neither_torch_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", FLOORS], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split(maxsplit=1)
    assert int(count) > 15
    assert loaded.strip() == "[]"
