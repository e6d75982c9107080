"""Makes an engine's fingerprint beside the loading of its weights, so that nobody waits for it at start-up.

Threads of their own hash the stored bytes of every tensor. Hashing leaves Python's lock alone and stands back behind
the engine's own threads; only who asks for the fingerprint waits.
"""

import contextlib
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from holdfast.models.checkpoint import Checkpoint
from holdfast.receipts.fingerprint import Fingerprint, Part

_MAX_THREADS = 4
_NICENESS = 10


class Fingerprinter:
    """Begins when it is made. `describe` gives every part but the weights, and is called in another thread."""

    def __init__(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, Part]]) -> None:
        self._made: Future[Fingerprint] = Future()
        _start(self._make, checkpoint, describe)

    def get(self) -> Fingerprint:
        """The fingerprint, when it is there."""
        return self._made.result()

    def _make(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, Part]]) -> None:
        try:
            self._made.set_result(Fingerprint({"weights": digest_weights(checkpoint), **describe()}))
        except BaseException as error:  # told to whoever asks
            self._made.set_exception(error)


def digest_weights(checkpoint: Checkpoint) -> str:
    """SHA-256 over the digests of all tensors, by name. Files, their metadata and their order do not matter."""
    names = iter(checkpoint.names())  # shared: each next() is one thread's
    digests: dict[str, bytes] = {}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not failures and (name := next(names, None)) is not None:
                digests[name] = _digest_tensor(checkpoint, name)
        except BaseException as error:
            failures.append(error)

    threads = [_start(work) for _ in range(min(_MAX_THREADS, os.cpu_count() or 1))]
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


def _digest_tensor(checkpoint: Checkpoint, name: str) -> bytes:
    raw = checkpoint.raw(name)
    digest = hashlib.sha256(json.dumps([name, raw.kind, checkpoint.shape(name)]).encode())
    digest.update(raw.data)
    return digest.digest()


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread that stands back, and that an ending process does not wait for."""

    def run() -> None:
        if sys.platform == "linux":  # where a priority belongs to a thread
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        target(*arguments)

    thread = threading.Thread(target=run, name="holdfast-fingerprint", daemon=True)
    thread.start()
    return thread
