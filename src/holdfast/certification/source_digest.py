"""The digest of Holdfast's own source: of the files that decide bits.

A version identifies a release. Between releases, or in a changed copy, only the source identifies
the code. The digest is part of the fingerprint and of the certificate's key. It is computed once
per process, also from a zip archive. Files that only schedule, serve or report decide no bit and
are left out. C sources are left out too: the recipe has their digest.
"""

import hashlib
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

FOLDERS = (
    "core",
    "numerics",
    "models",
    "worker",
    "certification",
    "thinking",
    "text",
    "structured",
    "sandbox",
)  # with all folders below them
ENGINE_FILES = ("output.py", "input_processor.py")


@cache
def own_source_digest() -> str | None:
    """None if there are no sources, as in an installation of compiled files only."""
    try:
        return digest_source(resources.files("holdfast"))
    except (OSError, ImportError, TypeError, ValueError):  # raised by loaders without folders
        return None


def digest_source(package: Traversable) -> str | None:
    """SHA-256 over path and content of every file that decides bits; None if a listed folder has
    no such file."""
    files = {name: [*_walk(package / name, name)] for name in FOLDERS}
    files["engine"] = [
        (path, file)
        for path, file in _walk(package / "engine", "engine")
        if any(fnmatchcase(path, f"engine/{pattern}") for pattern in ENGINE_FILES)
    ]
    if not all(files.values()):
        return None
    whole = hashlib.sha256()
    for path, file in sorted((one for found in files.values() for one in found), key=lambda one: one[0]):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        whole.update(json.dumps([path, content]).encode())
    return whole.hexdigest()


def _walk(folder: Traversable, at: str) -> Iterator[tuple[str, Traversable]]:
    """(path inside the package, file) of every Python file in and below a folder."""
    for one in folder.iterdir():
        path = f"{at}/{one.name}"
        if one.is_dir():
            yield from _walk(one, path)
        elif one.name.endswith(".py"):
            yield path, one
