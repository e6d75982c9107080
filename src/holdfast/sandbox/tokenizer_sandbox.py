"""Tries a model's tokenizer in a process of its own, before it reads a client's text.

A tokenizer.json contains regular expressions, which may backtrack without end, and replacements,
which may grow a text without end. The `tokenizers` library stops a pattern after a fixed number of
steps, with a panic, and bounds nothing else. So at load

- replacements that could grow a text more than `_MAX_GROWTH` times together are refused;
- patterns that are not well known run on texts that provoke backtracking: long runs of one
  character, of the pattern's own characters above all. Process, memory and CPU time are bounded
  (`tokenizer_worker`).

The vocabulary takes no part: merging is bounded by the text's length. A tokenizer whose patterns are
all known starts no process.
"""

import json
import math
import re
import signal
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from holdfast.errors import UnsupportedModel
from holdfast.sandbox.supervisor import SetupRefused, WorkerLost, WorkerSupervisor

_MAX_GROWTH = 256
_MAX_STEPS = 64
_LIMITS = {"RLIMIT_AS": 1 << 30, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 16}
_CPU_SECONDS, _TEXT_SECONDS, _WALL_SECONDS, _SETUP_SECONDS = 10.0, 1.0, 30.0, 30.0
_RUN = 4000
_RUNS = " \n\taA0._-é漢😀\u0301"  # the characters of runs, beside those of the patterns
_MAX_CHARACTERS = 64

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KNOWN_PATTERNS = frozenset([_GPT4 % r"\p{N}{1,3}", _GPT4 % r"\p{N}", r"\s+", r" {2,}", r"\p{N}{1,3}"])


@lru_cache(64)
def require_bounded(normalizer: str | None, pre_tokenizer: str | None, decoder: str | None) -> None:
    """Refuse the steps of a tokenizer, each as JSON, if they could run or grow without end."""
    parts = {
        name: None if source is None else json.loads(source)
        for name, source in (
            ("normalizer", normalizer),
            ("pre_tokenizer", pre_tokenizer),
            ("decoder", decoder),
        )
    }
    for name, part in parts.items():
        steps = list(_steps(part))
        growth = math.prod(map(_growth, steps))
        if len(steps) > _MAX_STEPS or growth > _MAX_GROWTH:
            raise UnsupportedModel(
                f"the {name} of the model's tokenizer.json has {len(steps)} steps and can make a text {growth:.2g} times "
                f"as long; at most {_MAX_STEPS} steps and {_MAX_GROWTH} times are supported: the file is hostile or broken"
            )
    patterns = [one for part in parts.values() for step in _steps(part) for one in _patterns(step)]
    unknown = [one for one in patterns if one not in _KNOWN_PATTERNS]
    if unknown or any(step.get("type") == "Precompiled" for step in _steps(parts["normalizer"])):
        _try(parts, unknown)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a part that has a type: its steps, at any depth."""
    stack = [part]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if isinstance(one.get("type"), str):
                yield one
            stack += one.values()
        elif isinstance(one, list):
            stack += one


def _patterns(step: Mapping[str, Any]) -> list[str]:
    pattern = step.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    return [found] if isinstance(found, str) else []


def _growth(step: Mapping[str, Any]) -> float:
    """Return how many times as long a replacement can make a text."""
    if step["type"] != "Replace" or not isinstance(step.get("content"), str):
        return 1.0
    pattern = step.get("pattern")
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(step["content"]) / (len(literal) if isinstance(literal, str) and literal else 1))


def _try(parts: Mapping[str, Any], patterns: list[str]) -> None:
    worker = WorkerSupervisor(
        "tokenizer_worker.py",
        ["tokenizers"],
        lambda: {"limits": _LIMITS},
        setup_seconds=_SETUP_SECONDS,
    )
    request = {
        "tokenizer": json.dumps({**_TOKENIZER, **parts}),
        "texts": _texts(patterns),
        "cpu_seconds": _CPU_SECONDS,
        "text_seconds": _TEXT_SECONDS,
    }
    try:
        answer = worker.request(request, seconds=_WALL_SECONDS)
    except WorkerLost as lost:
        reason = str(lost)
        if lost.signal == signal.SIGPROF:
            reason = f"it computed for more than {_CPU_SECONDS:g} seconds"
        answer = {"error": reason}
    except (SetupRefused, OSError, ImportError) as error:
        answer = {"error": f"its process cannot be started: {error}"}
    finally:
        worker.close()
    if "error" in answer:
        raise UnsupportedModel(
            f"the model's tokenizer failed at a text it was tried with: {answer['error']}; "
            "its patterns are hostile or broken: use another tokenizer.json"
        )


def _texts(patterns: list[str]) -> list[str]:
    """Make texts that provoke backtracking: runs that match far and fail at their end."""
    own = [one for one in dict.fromkeys("".join(patterns)) if one not in r"\()[]{}|?*+^$"]
    characters = dict.fromkeys([*_RUNS, *own[:_MAX_CHARACTERS]])
    texts = [text for one in characters for text in (one * _RUN, one * _RUN + "!\x01", f"{one}x" * 200)]
    words = [word for pattern in patterns for word in re.findall(r"\w{2,}", pattern)]
    return [*texts, *(word * 500 + "\x01" for word in words[:_MAX_CHARACTERS]), "Aa0 .\n" * 600]


# A tokenizer of bytes: the steps are tried with it.
_TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "post_processor": None,
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": "a",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": False,
        "vocab": {chr(code): code - 33 for code in range(33, 324)},
        "merges": [],
    },
}
