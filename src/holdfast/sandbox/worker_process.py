"""The program of every worker process: `python -P -s -S -B worker_process.py WORKER PATH...`.

`supervisor` runs this file with an environment of its own (one hash seed, one time zone), without user packages and
start-up hooks. Importable are the folders PATH only. It loads the file WORKER, limits the process, and answers
messages. Neither this file nor a worker imports another part of Holdfast. Messages are JSON objects, framed as in
`core.framing`, over the socket at stdin:

    set-up   {"limits": {"RLIMIT_AS": ..., ...}, "cpu_seconds": ..., ...}   answered with {} or {"error": ...}
    request  {"cpu_seconds": ..., ...}                                      answered with what the worker returns

A worker defines `open_worker(setup)`, which returns the function that answers a request. An exception
of `open_worker` refuses the set-up. A message that takes more than its `cpu_seconds`, if it has them,
ends the process by SIGPROF. The kernel's limits (`limits`) hold from the set-up on.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

try:
    import resource
except ImportError:  # a system without resource limits: only the supervisor's deadline holds
    resource = None  # type: ignore[assignment]


def main(path: str) -> None:
    """Load a worker, set it up, then answer requests until the supervisor closes the socket."""
    worker = _load(path)
    setup = _receive()
    _limit_process(setup.get("limits", {}))
    try:
        with _cpu_limit(setup):
            answer_to = worker.open_worker(setup)
    except Exception as error:
        _send({"error": str(error)})
        return
    _send({})
    while True:
        request = _receive()
        with _cpu_limit(request):
            answer = answer_to(request)
        _send(answer)


def _load(path: str) -> Any:
    spec = spec_from_file_location("worker", path)
    assert spec is not None and spec.loader is not None
    worker = sys.modules["worker"] = module_from_spec(spec)
    spec.loader.exec_module(worker)
    return worker


def _limit_process(limits: Mapping[str, int]) -> None:
    for name, bound in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system knows every limit
            resource.setrlimit(getattr(resource, name), (bound, bound))


@contextlib.contextmanager
def _cpu_limit(message: Mapping[str, Any]) -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, message.get("cpu_seconds", 0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _receive() -> dict[str, Any]:
    """Return the next message. End this process at the end of its input."""
    header = sys.stdin.buffer.read(4)
    payload = sys.stdin.buffer.read(int.from_bytes(header, "little"))
    if len(header) < 4:
        sys.exit(0)
    message: dict[str, Any] = json.loads(payload)
    return message


def _send(answer: Mapping[str, Any]) -> None:
    payload = json.dumps(answer).encode()
    message = memoryview(len(payload).to_bytes(4, "little") + payload)
    while message:
        message = message[os.write(0, message) :]


if __name__ == "__main__":
    _, _worker, *_paths = sys.argv
    sys.path[:0] = _paths
    main(_worker)
