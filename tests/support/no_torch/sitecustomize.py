"""In a process with this folder on PYTHONPATH torch is not installed, and uvloop is not: the extras bring them."""

import sys
from importlib import metadata, util
from typing import Any

_MISSING = ("torch", "uvloop")


class _Missing:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        package = name.partition(".")[0]
        if package in _MISSING:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _find_spec(name: str, package: str | None = None) -> Any:
    return None if name in _MISSING else _found(name, package)


def _version(name: str) -> str:
    if name in _MISSING:
        raise metadata.PackageNotFoundError(name)
    return _installed(name)


_found, _installed = util.find_spec, metadata.version
util.find_spec, metadata.version = _find_spec, _version
sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]
