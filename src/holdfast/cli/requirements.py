"""Checks before a command starts: optional packages are installed."""

from importlib.util import find_spec

from holdfast.errors import ConfigError


def require_packages(*packages: str, extra: str, what: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{what} needs {package}; install it with: pip install 'holdfast[{extra}]'")
