"""The process a tokenizer's patterns are tried in. `supervisor` runs this file, which imports no other
part of Holdfast.

Messages, framed as in `core.framing`, over the socket at stdin:

    set-up   {"memory_bytes": ...}
    request  {"tokenizer": ..., "texts": [...], "cpu_seconds": ..., "text_seconds": ...}
    answer   {} or {"error": ...}

The tokenizer encodes and decodes each text. A text that takes too long, a panic of the library and
an error are all answered with an error; the kernel ends the process if it needs too much.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]  # the folder of tokenizers; nothing else is importable

from tokenizers import Tokenizer

_MAX_ERROR_CHARS = 200


def attempt(request: dict[str, Any]) -> dict[str, str]:
    """Try every text."""
    try:
        tokenizer = Tokenizer.from_str(request["tokenizer"])
        for text in request["texts"]:
            began = time.process_time()
            tokenizer.decode(tokenizer.encode(text).ids)
            seconds = time.process_time() - began
            if seconds > request["text_seconds"]:
                return {
                    "error": f"it computes {seconds:.1f} seconds for {len(text)} characters {text[:8]!r}..."
                }
    except MemoryError:
        return {"error": "it needs more memory than a tokenizer may have"}
    except BaseException as error:  # a panic of the library is no Exception
        return {"error": str(error)[:_MAX_ERROR_CHARS]}
    return {}


def _receive() -> dict[str, Any]:
    """The next message, as `core.framing` frames it. Ends this process with its input."""
    header = sys.stdin.buffer.read(4)
    payload = sys.stdin.buffer.read(int.from_bytes(header, "little"))
    if len(header) < 4:
        sys.exit(0)
    request: dict[str, Any] = json.loads(payload)
    return request


def _send(answer: dict[str, Any]) -> None:
    payload = json.dumps(answer).encode()
    message = memoryview(len(payload).to_bytes(4, "little") + payload)
    while message:
        message = message[os.write(0, message) :]


def _limit_process(memory_bytes: int) -> None:
    bounds = {"RLIMIT_AS": memory_bytes, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 16}
    for name, bound in bounds.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system knows every limit
            resource.setrlimit(getattr(resource, name), (bound, bound))


def serve() -> None:
    """Try tokenizers until the supervisor closes the socket."""
    _limit_process(_receive()["memory_bytes"])
    _send({})
    while True:
        request = _receive()
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])  # its signal ends the process
        answer = attempt(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


if __name__ == "__main__":
    serve()
