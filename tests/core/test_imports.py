"""The plain floors run without torch and numpy."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import holdfast, holdfast.core, holdfast.kv_cache, holdfast.scheduler
for floor in (holdfast.core, holdfast.kv_cache, holdfast.scheduler):
    for module in pkgutil.iter_modules(floor.__path__):
        importlib.import_module(f"{floor.__name__}.{module.name}")
loaded = [name for name in ("torch", "numpy") if name in sys.modules]
print(len([name for name in sys.modules if name.startswith("holdfast.")]), loaded)
"""


def test_core_kv_cache_and_scheduler_import_neither_torch_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split(maxsplit=1)
    assert int(count) > 15
    assert loaded.strip() == "[]"
