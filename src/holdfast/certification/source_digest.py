"""The digest of Holdfast's own source: of the files that decide bits.

A version identifies a release. Between releases, or in a changed copy, only the source identifies
the code. The digest is part of the fingerprint and of the certificate's key. It is computed once
per process, also from a zip archive. Files that only schedule, serve or report decide no bit and
are left out. C sources are left out too: the recipe has their digest.
"""

import hashlib
import json
from collections.abc import Iterator
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
    """SHA-256 over path and content of the deciding files; None if a folder has none."""
    folders = deciding_files(package)
    if not all(folders.values()):
        return None
    digest = hashlib.sha256()
    files = {path: file for found in folders.values() for path, file in found.items()}
    for path in sorted(files):
        content = hashlib.sha256(files[path].read_bytes()).hexdigest()
        digest.update(json.dumps([path, content]).encode())
    return digest.hexdigest()


def deciding_files(package: Traversable) -> dict[str, dict[str, Traversable]]:
    """The files that decide bits: folder -> path inside the package -> file."""
    found = {name: dict(_walk(package / name, name)) for name in FOLDERS}
    found["engine"] = {
        path: file
        for path, file in _walk(package / "engine", "engine")
        if path.removeprefix("engine/") in ENGINE_FILES
    }
    return found


def _walk(folder: Traversable, at: str) -> Iterator[tuple[str, Traversable]]:
    """(path inside the package, file) of every Python file in and below a folder."""
    for one in folder.iterdir():
        path = f"{at}/{one.name}"
        if one.is_dir():
            yield from _walk(one, path)
        elif one.name.endswith(".py"):
            yield path, one
