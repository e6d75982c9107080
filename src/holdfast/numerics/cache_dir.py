"""Where things made once on this machine are kept: built kernels, certificates. Losing it costs time, nothing else."""

import os
from pathlib import Path


def cache_folder() -> Path:
    chosen = os.environ.get("HOLDFAST_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
