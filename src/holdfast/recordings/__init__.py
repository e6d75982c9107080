"""Recordings of real divergences, as JSON files: ordinary answers that differed under load, on named
machines. `benchmarks/divergence.py --save` writes them.

The demo and the inspector show them where the kernels of this machine agree by construction.
"""

from importlib import resources


def recording_files() -> list[bytes]:
    """The contents of the files, in the order of their names."""
    files = (one for one in resources.files(__name__).iterdir() if one.name.endswith(".json"))
    return [one.read_bytes() for one in sorted(files, key=lambda one: one.name)]
