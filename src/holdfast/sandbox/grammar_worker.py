"""llguidance with our limits, and the process a form is tried in before this one trusts it.

It is run as a file, by `grammar_sandbox`, and imports no other part of Holdfast; `open_trie` and `open_matcher` are what
the engine itself compiles with, so that what was tried is what runs. Each message on the socket at stdin is eight bytes
of length (big-endian) and a JSON object:

    in   {"texts": [latin-1, ...], "eos_ids": [...]}                                       once, first
    in   {"grammar": ..., "is_lark": ..., "cpu_seconds": ..., "memory_bytes": ...}         for each form
    out  {"num_bytes": ...} or {"error": ...}                                              one for each form, in order

The process opens the vocabulary once. Each form is compiled and followed for some tokens in a fork of it, which the
kernel bounds in CPU time, wall time and memory, on a stack smaller than the engine's: whatever a form does there, loop,
eat or overflow, the next one finds a clean process.
"""

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

try:
    import resource
except ImportError:  # a system without limits has no process to try forms in, either
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance's own limits, for compiling and for every step. They are functions of the tokens, and keep a step of most forms
# we found below 0.1 s and of an ordinary one below a millisecond, but they do not bound compiling; hence the process.
PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,  # an object of about 250 optional properties
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,  # about 2 kB each
    "max_grammar_size": 20_000,  # symbols: 5000 required properties
    "verbose_errors": False,
}
# A row of an ambiguous grammar takes time with the third power of its items: 12 ms for 500, 90 ms for 1000. JSON's
# long rows are not ambiguous. A large programming language needs some 150; a right-recursive list of 250 elements, 500.
# Rows are counted at the ends of tokens, so where tokens are long some go uncounted: what is left to the matcher's clocks.
LARK_LIMITS: dict[str, Any] = {"max_items_in_row": 500, "step_max_items": 10_000}

_STACK_BYTES = 2 << 20
_NUM_WALKS = 4
_WALK_LEN = 32
_MAX_ERROR_CHARS = 300
_WALL_FACTOR = 5  # a busy machine may take so much longer than the CPU time
_PLAIN_ERRORS = {
    "NoExtensionBias": "no token can follow: it leads nowhere, or this model's vocabulary cannot write it",
}


class _Words:
    """What llguidance asks of a tokenizer. It never has to encode: forms force no tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, texts: Sequence[bytes], eos_ids: Sequence[int]) -> None:
        self.tokens = list(texts)
        self.eos_token_id = eos_ids[0]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


def open_trie(texts: Sequence[bytes], eos_ids: Sequence[int]) -> "LLTokenizer":
    """The vocabulary as llguidance walks it."""
    from llguidance import LLTokenizer

    words: Any = _Words(texts, eos_ids)
    return LLTokenizer(words, eos_token=list(eos_ids))


def open_matcher(trie: "LLTokenizer", grammar: str, *, is_lark: bool = False) -> "LLMatcher":
    """A compiled grammar at its beginning, or a matcher that is in error from the start."""
    from llguidance import LLMatcher, LLParserLimits

    limits = PARSER_LIMITS | (LARK_LIMITS if is_lark else {})
    return LLMatcher(trie, grammar, log_level=0, limits=LLParserLimits(**limits))


def is_of_lexer(error: str) -> bool:
    """Whether a lexer's past may be the cause. A full lexer fails in several ways, a parser's limits in these two."""
    return "Current row has" not in error and "Too many items" not in error


def explain(error: str) -> str:
    """llguidance's words in a line, without its dumps of state."""
    words = error.partition("\n<")[0]
    for line in words.splitlines():
        if line.startswith("error: "):  # what the regex library means, below a picture of where
            return line.removeprefix("error: ")
    line = " ".join(words.split())
    return _PLAIN_ERRORS.get(line, line)[:_MAX_ERROR_CHARS]


def find_fault(trie: "LLTokenizer", grammar: str, *, is_lark: bool) -> str | None:
    """Compile a form and follow it some tokens far, in some ways. Returns what is wrong with it."""
    if is_lark and _names_tokens(grammar):
        return "it names tokens (<...>); only text can be asked for"
    matcher = open_matcher(trie, grammar, is_lark=is_lark)
    if matcher.is_error():
        return explain(matcher.get_error())
    warnings = matcher.get_grammar_warnings()
    if warnings:
        return explain("; ".join(warnings))
    for walk in range(_NUM_WALKS):
        fault = _follow(matcher.deep_copy(), walk, trie.eos_tokens)
        if fault is not None:
            return fault
    return None


def _names_tokens(grammar: str) -> bool:
    """Without a vocabulary llguidance cannot look up a token, and warns of each."""
    from llguidance import LLMatcher

    _, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return any("no tokenizer" in message for message in messages)


def _follow(matcher: "LLMatcher", walk: int, eos_ids: Sequence[int]) -> str | None:
    """One walk: along the lowest tokens, along the highest, or at random. Returns what went wrong."""
    ends = sum(1 << id_ for id_ in eos_ids)
    chance = random.Random(walk)
    for step in range(_WALK_LEN):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~ends
        if matcher.is_error():
            return explain(matcher.get_error())
        if not allowed:
            return None
        matcher.consume_token(_pick(allowed, walk, chance))
        if step == 0 and walk == 0:
            tried = matcher.deep_copy()
            if not tried.rollback(
                1
            ):  # max_tokens= and stop=: not a function of the text, or text that is hidden
                return explain(tried.get_error())
    return explain(matcher.get_error()) if matcher.is_error() else None


def _pick(allowed: int, walk: int, chance: random.Random) -> int:
    if walk == 0:
        return (allowed & -allowed).bit_length() - 1
    if walk == 1:
        return allowed.bit_length() - 1
    from_bit = chance.randrange(allowed.bit_length())
    above = allowed >> from_bit
    return from_bit + (above & -above).bit_length() - 1


def _try_in_fork(trie: "LLTokenizer", request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a fork that tried the form, or what became of the fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _try(trie, request, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if answer:
        result: dict[str, Any] = json.loads(answer)
        return result
    ended = os.waitstatus_to_exitcode(status)
    if ended in (-signal.SIGPROF, -signal.SIGALRM):
        return {"error": f"it takes more than {request['cpu_seconds']:g} seconds to compile and to follow"}
    return {"error": "it needs more memory, or is nested deeper, than a form may be"}


def _try(trie: "LLTokenizer", request: dict[str, Any], writing: int) -> None:
    """Try the form within its limits, write the answer, and end the process whatever happens."""
    answers: list[dict[str, Any]] = []

    def work() -> None:
        before = _peak_bytes()
        try:
            fault = find_fault(trie, request["grammar"], is_lark=request["is_lark"])
            answers.append({"num_bytes": _peak_bytes() - before} if fault is None else {"error": fault})
        except BaseException as error:
            answers.append({"error": explain(f"{type(error).__name__}: {error}")})

    try:
        _limit(request["cpu_seconds"], request["memory_bytes"])
        threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        os.write(writing, json.dumps(answers[0]).encode())
    finally:
        os._exit(0)


def _limit(cpu_seconds: float, memory_bytes: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a system that does not tell has no bound on memory
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, _WALL_FACTOR * cpu_seconds)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _receive(channel: socket.socket) -> dict[str, Any]:
    length = int.from_bytes(_read_exactly(channel, 8), "big")
    request: dict[str, Any] = json.loads(_read_exactly(channel, length))
    return request


def _read_exactly(channel: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = channel.recv(min(count, 1 << 20))
        if not piece:
            sys.exit(0)  # the engine has gone
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def serve() -> None:
    """Open the vocabulary, then try forms until the engine goes."""
    channel = socket.socket(fileno=0)
    first = _receive(channel)
    trie = open_trie([text.encode("latin-1") for text in first["texts"]], first["eos_ids"])
    while True:
        payload = json.dumps(_try_in_fork(trie, _receive(channel))).encode()
        channel.sendall(len(payload).to_bytes(8, "big") + payload)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]  # where llguidance lies; nothing else is importable
    serve()
