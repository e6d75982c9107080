"""Checks before a command starts: optional packages are installed, output folders exist."""

from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigError


def require_packages(*packages: str, extra: str = "bench", what: str = "the benchmark") -> None:
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{what} needs {package}; install it with: pip install 'holdfast[{extra}]'")


def require_folder(*paths: Path | None) -> None:
    """The folder of each of these files must exist."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
