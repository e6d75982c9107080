"""Holdfast's cache directory, for built kernels, certificates and GEMM recipes.

Deleting it costs time only.
"""

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    chosen = os.environ.get("HOLDFAST_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file by renaming a complete one, and create its folder.

    Raises OSError and then leaves no file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)  # for example if the disk is full
            raise
