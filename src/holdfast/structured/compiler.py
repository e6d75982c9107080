"""Compile a structured output into the grammar of one answer.

llguidance is imported with the first structured output: everything else runs without it. A grammar
is tried in a worker process (`grammar_sandbox`), then compiled here, and cached for later requests.
The invariant: a grammar that `compile` returns can be followed; anything wrong with a grammar is an
`InvalidRequest`.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarLimits, GrammarSandbox
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.behaviour import grammar_library
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import KIND_NAMES, require_llguidance, write_grammar
from holdfast.structured.vocabulary import Vocabulary, read_vocabulary
from holdfast.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

NUM_WORKERS = 2  # grammars that are compiled at once
_POLL_SECONDS = 0.1
_MAX_CACHED = 64
_MAX_CACHED_BYTES = 512 << 20


class GrammarCompiler:
    """Compile grammars for one model, from any thread. `vocab_size` is its number of logits."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_ids: frozenset[int],
        *,
        limits: GrammarLimits | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._limits = limits
        self._backend: _Backend | None = None
        self._cache: OrderedDict[StructuredOutput, CompiledGrammar] = OrderedDict()
        self._compiling: dict[StructuredOutput, _Compilation] = {}
        self._lock = threading.Lock()  # of both; held briefly
        self._backend_lock = threading.Lock()

    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> MatcherGrammar:
        """Return the grammar of one answer. Refuses what is wrong, too large or too slow.

        Raises `Cancelled` once the token is cancelled. A grammar that several callers wait for is
        compiled once, and given up when the last of them is cancelled.
        """
        compiled = self._find(structured)
        while compiled is None:
            compiled = self._compile_once(structured, token or CancelToken())
        assert self._backend is not None
        return MatcherGrammar(compiled, self._backend.vocabulary)

    def is_compiled(self, structured: StructuredOutput) -> bool:
        """Return whether `compile` would return at once."""
        return structured in self._cache

    def close(self) -> None:
        """End the worker processes; compiling another grammar starts new ones."""
        if self._backend is not None:
            self._backend.sandbox.close()

    def _compile_once(self, structured: StructuredOutput, token: CancelToken) -> CompiledGrammar | None:
        """Compile, or wait for the caller that does. None: that caller was cancelled."""
        with self._lock:
            compilation = self._compiling.get(structured)
            is_first = compilation is None
            if compilation is None:
                compilation = self._compiling[structured] = _Compilation()
            compilation.num_callers += 1
        try:
            with token.on_cancel(lambda: self._leave(compilation)):
                if is_first:
                    self._finish(structured, compilation)
                compilation.wait(token)
        finally:
            if is_first and not compilation.done.is_set():  # cancelled before it began
                self._end(structured, compilation)
        return compilation.compiled

    def _leave(self, compilation: "_Compilation") -> None:
        with self._lock:
            compilation.num_callers -= 1
            is_last = compilation.num_callers == 0
        if is_last:
            compilation.token.cancel()

    def _finish(self, structured: StructuredOutput, compilation: "_Compilation") -> None:
        try:
            compilation.compiled = self._compile(structured, compilation.token)
        except Exception as error:
            compilation.error = error
        self._end(structured, compilation)

    def _end(self, structured: StructuredOutput, compilation: "_Compilation") -> None:
        with self._lock:
            self._compiling.pop(structured, None)
        compilation.done.set()

    def _find(self, structured: StructuredOutput) -> CompiledGrammar | None:
        with self._lock:
            compiled = self._cache.get(structured)
            if compiled is not None:
                self._cache.move_to_end(structured)
            return compiled

    def _compile(self, structured: StructuredOutput, token: CancelToken) -> CompiledGrammar:
        grammar = write_grammar(structured)
        backend = self._open_backend()
        is_lark = structured.kind == "lark"
        trial = backend.sandbox.try_grammar(
            grammar, is_lark=is_lark, special_tokens=structured.special_tokens, token=token
        )
        if trial.fault is not None:
            raise InvalidRequest(f"the {KIND_NAMES[structured.kind]} cannot be used: {trial.fault}")
        compiled = CompiledGrammar(
            lambda: open_matcher(backend.trie, grammar, is_lark=is_lark), trial.num_bytes
        )
        if compiled.fault is not None:
            raise InvalidRequest(f"the {KIND_NAMES[structured.kind]} cannot be used: {compiled.fault}")
        self._add(structured, compiled)
        return compiled

    def _add(self, structured: StructuredOutput, compiled: CompiledGrammar) -> None:
        """Cache a grammar and evict the least recently used. The newest stays, however large."""
        with self._lock:
            self._cache[structured] = compiled
            num_bytes = sum(one.num_bytes for one in self._cache.values())
            while len(self._cache) > _MAX_CACHED or (num_bytes > _MAX_CACHED_BYTES and len(self._cache) > 1):
                _, oldest = self._cache.popitem(last=False)
                num_bytes -= oldest.num_bytes

    def _open_backend(self) -> "_Backend":
        with self._backend_lock:
            if self._backend is None:
                require_llguidance()
                grammar_library()  # now, so that no receipt waits for it
                vocabulary = read_vocabulary(self._tokenizer, self._vocab_size, self._eos_ids)
                self._backend = _Backend(vocabulary, self._limits)
            return self._backend


class _Compilation:
    """A grammar that is being compiled, and its callers."""

    def __init__(self) -> None:
        self.token = CancelToken()  # cancelled with the last caller
        self.num_callers = 0
        self.compiled: CompiledGrammar | None = None
        self.error: Exception | None = None
        self.done = threading.Event()

    def wait(self, token: CancelToken) -> None:
        """Wait for the end. Raises its error, unless that is another caller's `Cancelled`."""
        while not self.done.wait(_POLL_SECONDS):
            token.check()
        token.check()
        if self.error is not None and not isinstance(self.error, Cancelled):
            raise self.error


class _Backend:
    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits | None) -> None:
        self.vocabulary = vocabulary
        self.sandbox = GrammarSandbox(vocabulary.texts, vocabulary.eos_ids, limits, num_workers=NUM_WORKERS)
        self.sandbox.warm()  # the worker opens the vocabulary while this process does, too
        self.trie: LLTokenizer = open_trie(vocabulary.texts, sorted(vocabulary.eos_ids))
