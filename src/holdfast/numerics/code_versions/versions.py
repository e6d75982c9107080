"""The version of a component that is installed, and the digest that guards it.

`recorded.json` holds a version and a digest for every component. If the installed files have the
recorded digest, the version alone names the code. If not, the copy was modified: the digest follows
the version, so that it never passes for the release. A digest is one of canonical sources, so a
comment changes nothing.

A version is raised when a change of the code changes a bit. The digest is recorded anew with every
change.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from holdfast.numerics.cache_dir import cache_dir, write_atomic
from holdfast.numerics.code_versions.canonical_source import canonical_c, canonical_python
from holdfast.numerics.code_versions.components import component_files, files_at

RECORDED = "numerics/code_versions/recorded.json"
_CANONICAL = "numerics/code_versions/canonical_source.py"
_SHOWN_DIGITS = 32
_parsing = threading.Lock()  # in Python 3.11, ast.parse in two threads at once raises SystemError


@dataclass(frozen=True)
class Recorded:
    """The version of a component and the digest of its sources at that version."""

    version: int
    digest: str


def code_versions(components: Iterable[str]) -> dict[str, int | str]:
    """The installed version of each of these components."""
    return {name: code_version(name) for name in components}


@cache
def code_version(component: str) -> int | str:
    """3 for the recorded sources of version 3. "3+digest" for modified ones, and for an installation
    of compiled files only. "3+unknown" if there are no files to read.

    Computed once per process. A digest is kept on disk by the files' content.
    """
    package = resources.files("holdfast")
    recorded = read_recorded(package)[component]
    try:
        files = component_files(package, component)
    except (OSError, TypeError, ValueError):  # raised by loaders without folders
        files = None
    with _parsing:
        digest = None if files is None else cached_digest(package, files)
    return recorded.version if digest == recorded.digest else modified_version(recorded.version, digest)


def modified_version(version: int, digest: str | None) -> str:
    return f"{version}+{'unknown' if digest is None else digest[:_SHOWN_DIGITS]}"


def read_recorded(package: Traversable) -> dict[str, Recorded]:
    entries = json.loads(package.joinpath(RECORDED).read_text())
    return {name: Recorded(entry["version"], entry["digest"]) for name, entry in entries.items()}


def digest_files(files: Mapping[str, bytes]) -> str:
    """SHA-256 over path and canonical content."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(json.dumps([path, hashlib.sha256(_canonical(path, files[path])).hexdigest()]).encode())
    return digest.hexdigest()


def _canonical(path: str, content: bytes) -> bytes:
    """The content itself where it is no source, such as `._name.py` of another file system."""
    canonical = canonical_python if path.endswith(".py") else canonical_c
    if not path.endswith((".py", ".c", ".h")):
        return content
    try:
        return canonical(content)
    except (SyntaxError, ValueError):
        return content


def cached_digest(package: Traversable, files: Mapping[str, bytes]) -> str:
    """`digest_files`, from disk if these files were digested before: 0.25 s of parsing for each
    10,000 lines."""
    key = hashlib.sha256()
    for path, content in (*files_at(package, _CANONICAL), *sorted(files.items())):
        key.update(json.dumps([path, len(content)]).encode() + content)
    kept = cache_dir() / "code" / f"{key.hexdigest()}.txt"
    with contextlib.suppress(OSError, ValueError):
        text = kept.read_text()
        if len(text) == 64:
            return text
    digest = digest_files(files)
    with contextlib.suppress(OSError):  # parsed again next time
        write_atomic(kept, digest)
    return digest
