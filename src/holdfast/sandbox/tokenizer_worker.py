"""The process a tokenizer's patterns are tried in. `worker_process` loads this file, which imports no
other part of Holdfast.

    set-up   {}
    request  {"tokenizer": ..., "texts": [...], "text_seconds": ...}
    answer   {} or {"error": ...}

The tokenizer encodes and decodes each text. A text that takes too long, a panic of the library and
an error are all answered with an error; the kernel ends the process if it needs too much.
"""

import time
from collections.abc import Callable
from typing import Any

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


def open_worker(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    return attempt
