"""In a process with this folder on PYTHONPATH torch is not installed."""

import sys
from importlib import metadata, util
from typing import Any


class _NoTorch:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


def _find_spec(name: str, package: str | None = None) -> Any:
    return None if name == "torch" else _found(name, package)


def _version(name: str) -> str:
    if name == "torch":
        raise metadata.PackageNotFoundError(name)
    return _installed(name)


_found, _installed = util.find_spec, metadata.version
util.find_spec, metadata.version = _find_spec, _version
sys.meta_path.insert(0, _NoTorch())  # type: ignore[arg-type]
