"""Engine replicas on Ray Serve. `holdfast.ray:build` makes the application that `serve run` takes.

Ray is imported when `build` is used, and not before.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "build":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.ray.application import build

    return build
