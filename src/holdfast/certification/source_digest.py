"""The digest of our own source: the files of this package that decide prompts, logits and tokens.

A version says what was released; between two releases, or in a changed copy, only the source says which code answered. It is
read once a process, with the first fingerprint, and found wherever the package lies. What only schedules, serves
or reports is left out: it decides no bit. So are C sources, which are the recipe's.
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
    "thinking",
    "text",
    "structured",
    "sandbox",
)  # with all below them
ENGINE_FILES = ("output.py", "input_processor.py")


@cache
def own_source_digest() -> str | None:
    """None where the sources are not there, as in an installation of compiled files."""
    try:
        return digest_source(resources.files("holdfast"))
    except (OSError, ImportError, TypeError, ValueError):  # what loaders that are no folders answer with
        return None


def digest_source(package: Traversable) -> str | None:
    """SHA-256 over path and content of every file that decides bits; None if a place where some must be holds none."""
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
