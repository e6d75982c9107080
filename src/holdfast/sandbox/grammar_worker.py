"""llguidance with our limits, and the process that tries a grammar before the engine compiles it.

`worker_process` loads this file, which imports no other part of Holdfast. The engine's own process
compiles with the same `open_trie` and `open_matcher`, so what was tried is what runs.

    set-up   {"texts": [latin-1, ...], "eos_ids": [...]}
    request  {"grammar": ..., "is_lark": ..., "special_tokens": ..., "follow": ..., "trial_seconds": ...,
              "memory_bytes": ...}
    answer   {"num_bytes": ...} or {"error": ...}
    SIGUSR1  ends the fork that tries a grammar; the answer is an error

The process opens the vocabulary once. Each grammar is compiled and followed for some tokens in a
fork, which the kernel bounds in CPU time, wall time and memory, on a stack smaller than the
engine's. Whatever a grammar does there (loop, allocate, overflow), the next one gets a clean
process.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import resource
except ImportError:  # a system without resource limits has no fork, either
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance's own limits, for compiling and for every step. They are functions of the tokens. They
# keep a step below 0.1 s for most grammars we found, and below a millisecond for ordinary ones.
# They do not bound compiling; the process does.
PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,  # an object of about 250 optional properties
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,  # about 2 kB each
    "max_grammar_size": 20_000,  # symbols: 5000 required properties
    "verbose_errors": False,
}
# An Earley row of an ambiguous grammar takes time with the third power of its items: 12 ms for 500,
# 90 ms for 1000. JSON's long rows are not ambiguous. A large programming language needs some 150
# items; a right-recursive list of 250 elements, 500. Rows are counted at the ends of tokens, so
# long tokens leave some uncounted; the matcher's own time limits bound those.
LARK_LIMITS: dict[str, Any] = {"max_items_in_row": 500, "step_max_items": 10_000}

_STACK_BYTES = 2 << 20
_NUM_WALKS = 4
_WALK_LEN = 32
_MAX_ERROR_CHARS = 300
_WALL_FACTOR = 5  # wall time allowed for the CPU time, on a busy machine
_PLAIN_ERRORS = {
    "NoExtensionBias": "no token can follow: it leads nowhere, or this model's vocabulary cannot write it",
}


class _TokenizerWrapper:
    """What llguidance reads of a tokenizer. It never encodes: our grammars force no tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, texts: Sequence[bytes], eos_ids: Sequence[int]) -> None:
        self.tokens = list(texts)
        self.eos_token_id = eos_ids[0]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


def open_trie(texts: Sequence[bytes], eos_ids: Sequence[int]) -> "LLTokenizer":
    """Return the vocabulary as llguidance's token trie."""
    from llguidance import LLTokenizer

    wrapper: Any = _TokenizerWrapper(texts, eos_ids)
    return LLTokenizer(wrapper, eos_token=list(eos_ids))


def open_matcher(trie: "LLTokenizer", grammar: str, *, is_lark: bool = False) -> "LLMatcher":
    """Return a compiled grammar before its first token. `is_error()` is true if it cannot be compiled."""
    from llguidance import LLMatcher, LLParserLimits

    limits = PARSER_LIMITS | (LARK_LIMITS if is_lark else {})
    return LLMatcher(trie, grammar, log_level=0, limits=LLParserLimits(**limits))


def is_of_lexer(error: str) -> bool:
    """Return whether the lexer, which all matchers of a grammar share, may have failed because of earlier
    tokens. A full lexer fails in several ways, the parser's limits only in these two."""
    return "Current row has" not in error and "Too many items" not in error


def explain(error: str) -> str:
    """Write llguidance's message as one line, without its dumps of state."""
    message = error.partition("\n<")[0]
    for line in message.splitlines():
        if line.startswith("error: "):  # the regex library's message, after a drawing of the position
            return line.removeprefix("error: ")
    line = " ".join(message.split())
    return _PLAIN_ERRORS.get(line, line)[:_MAX_ERROR_CHARS]


def find_fault(
    trie: "LLTokenizer",
    grammar: str,
    *,
    is_lark: bool,
    special_tokens: bool = False,
    follow: bool = True,
) -> str | None:
    """Compile a grammar and follow it for some tokens. Returns what is wrong with it.

    special_tokens: it may name special tokens.
    """
    if is_lark and not special_tokens and _names_tokens(grammar):
        return "it names tokens (<...>); only text can be constrained"
    matcher = open_matcher(trie, grammar, is_lark=is_lark)
    if matcher.is_error():
        return explain(matcher.get_error())
    warnings = matcher.get_grammar_warnings()
    if warnings:
        return explain("; ".join(warnings))
    for walk in range(_NUM_WALKS if follow else 0):
        fault = _follow(matcher.deep_copy(), walk, trie.eos_tokens)
        if fault is not None:
            return fault
    return None


def _names_tokens(grammar: str) -> bool:
    """Return whether a grammar names tokens: llguidance cannot resolve one without a vocabulary, and warns."""
    from llguidance import LLMatcher

    _, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return any("no tokenizer" in message for message in messages)


def _follow(matcher: "LLMatcher", walk: int, eos_ids: Sequence[int]) -> str | None:
    """Walk once: along the lowest token ids, the highest, or at random. Return what went wrong."""
    eos_bits = sum(1 << id_ for id_ in eos_ids)
    rng = random.Random(walk)
    for step in range(_WALK_LEN):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~eos_bits
        if matcher.is_error():
            return explain(matcher.get_error())
        if not allowed:
            return None
        matcher.consume_token(_pick(allowed, walk, rng))
        if step == 0 and walk == 0:
            # max_tokens= and stop= make a grammar that is no function of the text; it cannot roll
            # back.
            tried = matcher.deep_copy()
            if not tried.rollback(1):
                return explain(tried.get_error())
    return explain(matcher.get_error()) if matcher.is_error() else None


def _pick(allowed: int, walk: int, rng: random.Random) -> int:
    if walk == 0:
        return (allowed & -allowed).bit_length() - 1
    if walk == 1:
        return allowed.bit_length() - 1
    from_bit = rng.randrange(allowed.bit_length())
    above = allowed >> from_bit
    return from_bit + (above & -above).bit_length() - 1


_running: list[int] = []  # the fork that tries a grammar now


def _end_fork(*_: object) -> None:
    """Kill the fork on SIGUSR1: nobody waits for its answer. It is not reaped yet, so the id is its."""
    for child in _running:
        os.kill(child, signal.SIGKILL)


def _try_in_fork(trie: "LLTokenizer", request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a fork that tried the grammar, or why the fork died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _try(trie, request, writing)
    os.close(writing)
    _running.append(child)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    _running.clear()
    _, status = os.waitpid(child, 0)
    if answer:
        result: dict[str, Any] = json.loads(answer)
        return result
    ended = os.waitstatus_to_exitcode(status)
    if ended in (-signal.SIGPROF, -signal.SIGALRM):
        return {"error": f"it takes more than {request['trial_seconds']:g} seconds to compile and to follow"}
    return {"error": "it needs more memory, or is nested deeper, than a grammar may be"}


def _try(trie: "LLTokenizer", request: dict[str, Any], writing: int) -> None:
    """Try the grammar within its limits, write the answer, and exit. Called in the fork."""
    answers: list[dict[str, Any]] = []

    def work() -> None:
        before = _peak_bytes()
        try:
            options = {name: request[name] for name in ("is_lark", "special_tokens", "follow")}
            fault = find_fault(trie, request["grammar"], **options)
            answers.append({"num_bytes": _peak_bytes() - before} if fault is None else {"error": fault})
        except BaseException as error:
            answers.append({"error": explain(f"{type(error).__name__}: {error}")})

    try:
        _limit(request["trial_seconds"], request["memory_bytes"])
        threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        os.write(writing, json.dumps(answers[0]).encode())
    finally:
        os._exit(0)


def _limit(cpu_seconds: float, memory_bytes: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # without /proc there is no bound on memory
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, _WALL_FACTOR * cpu_seconds)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def open_worker(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Open the vocabulary."""
    signal.signal(signal.SIGUSR1, _end_fork)
    trie = open_trie([text.encode("latin-1") for text in setup["texts"]], setup["eos_ids"])
    return partial(_try_in_fork, trie)
