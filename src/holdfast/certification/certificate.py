"""A certificate: which batch sizes give the reference bits on this machine, and the evidence.

It is made once (`certify.py`) and kept on disk under a hash of everything its result depends on. A
certificate does not make an answer canonical by itself: it lists the batch sizes whose bits were
measured to be the reference's.
"""

import hashlib
import json
import logging
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from holdfast.numerics.cache_dir import cache_dir, read_json, remove, write_checked

_log = logging.getLogger(__name__)
FORMAT = 3

T = TypeVar("T")


@dataclass(frozen=True)
class OperationCheck:
    """One operation compared with its reference: the batch sizes tested, and those that differ."""

    name: str
    shape: str
    sizes_tested: tuple[int, ...]
    sizes_differing: tuple[int, ...]
    num_comparisons: int

    @property
    def agrees(self) -> bool:
        return not self.sizes_differing


# A check that can be paused: it yields after each bounded part of its work.
CheckSteps = Generator[None, None, OperationCheck]


def run_check(steps: Generator[None, None, T]) -> T:
    """Run a check, or a part of one, to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass(frozen=True)
class Certificate:
    """The result of a certification, in the field names of the JSON format.

    refusal: why not even the reference pass can be trusted, or None.
    """

    key: str
    subject: Mapping[str, object]  # what the key is a hash of
    sizes: tuple[int, ...]  # certified batch sizes in tokens, ascending
    checks: tuple[OperationCheck, ...]
    refusal: str | None
    seconds: float
    kernels: tuple[str, ...] = ()  # on a GPU: the kernels that ran in a pass

    @cached_property
    def digest(self) -> str:
        """A hash of the content without `seconds`."""
        content = {**self.as_dict(), "seconds": None}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "subject": dict(self.subject), "format": FORMAT}


def certificate_key(subject: Mapping[str, object]) -> str:
    text = json.dumps({"format": FORMAT, **subject}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def load_certificate(key: str) -> Certificate | None:
    """Return the certificate on disk under this key, if there is one that can be read."""
    found = read_json(_path(key), Certificate)
    is_ours = found is not None and found.key == certificate_key(found.subject) == key
    return found if is_ours else None


def save_certificate(certificate: Certificate) -> None:
    """Keep it for the next start. If writing fails, the next start certifies again."""
    try:
        content = json.dumps(certificate.as_dict(), indent=1)
        write_checked(_path(certificate.key), content.encode())
    except OSError as error:
        _log.warning("the certificate could not be kept: %s", error)


def delete_certificate(key: str) -> None:
    """Delete a certificate from disk, so that the next start certifies again."""
    try:
        remove(_path(key))
    except OSError as error:
        _log.warning("the certificate could not be deleted: %s", error)


def list_certificates() -> list[Certificate]:
    """Return all certificates on disk that can be read, ordered by key."""
    keys = sorted(path.stem for path in (cache_dir() / "certificates").glob("*.json"))
    return [certificate for key in keys if (certificate := load_certificate(key)) is not None]


def _path(key: str) -> Path:
    return cache_dir() / "certificates" / f"{key}.json"
