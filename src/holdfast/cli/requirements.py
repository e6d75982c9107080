"""What a benchmark cannot do without is missed before it begins, not after minutes of measuring."""

from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigError


def require_packages(*packages: str, extra: str = "bench") -> None:
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                f"the benchmark needs {package}; install it with: pip install 'holdfast[{extra}]'"
            )


def require_folder(*paths: Path | None) -> None:
    """Of each file to be written."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
