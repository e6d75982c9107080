"""Compiles a structured output into the grammar of one answer.

llguidance is imported with the first structured output: everything else runs without it. A grammar
is tried in a worker process (`grammar_sandbox`), then compiled here, and cached for later requests.
The invariant: a grammar that `compile` returns can be followed; anything wrong with a grammar is an
`InvalidRequest`.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarLimits, GrammarSandbox
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.check import require_llguidance
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import KIND_NAMES, write_grammar
from holdfast.structured.vocabulary import Vocabulary, read_vocabulary
from holdfast.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_MAX_CACHED = 64
_MAX_CACHED_BYTES = 512 << 20


class GrammarCompiler:
    """Compiles grammars for one model, from any thread. `vocab_size` is its number of logits."""

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
        self._cache_lock = threading.Lock()  # held briefly
        self._compile_lock = threading.Lock()  # held while a grammar is tried and compiled

    def compile(self, structured: StructuredOutput) -> MatcherGrammar:
        """The grammar of one answer. Refuses what is wrong, too large or too slow."""
        compiled = self._find(structured)
        if compiled is None:
            with self._compile_lock:
                compiled = self._find(structured) or self._compile(structured)
        assert self._backend is not None
        return MatcherGrammar(compiled, self._backend.vocabulary)

    def close(self) -> None:
        """End the worker process; compiling another grammar starts a new one."""
        with self._compile_lock:
            if self._backend is not None:
                self._backend.sandbox.close()

    def _find(self, structured: StructuredOutput) -> CompiledGrammar | None:
        with self._cache_lock:
            compiled = self._cache.get(structured)
            if compiled is not None:
                self._cache.move_to_end(structured)
            return compiled

    def _compile(self, structured: StructuredOutput) -> CompiledGrammar:
        grammar = write_grammar(structured)
        backend = self._open_backend()
        is_lark = structured.kind == "lark"
        trial = backend.sandbox.try_grammar(grammar, is_lark=is_lark)
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
        with self._cache_lock:
            self._cache[structured] = compiled
            num_bytes = sum(one.num_bytes for one in self._cache.values())
            while len(self._cache) > _MAX_CACHED or (num_bytes > _MAX_CACHED_BYTES and len(self._cache) > 1):
                _, oldest = self._cache.popitem(last=False)
                num_bytes -= oldest.num_bytes

    def _open_backend(self) -> "_Backend":
        if self._backend is None:
            require_llguidance()
            vocabulary = read_vocabulary(self._tokenizer, self._vocab_size, self._eos_ids)
            self._backend = _Backend(vocabulary, self._limits)
        return self._backend


class _Backend:
    """What compiling needs: made with the first grammar."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits | None) -> None:
        self.vocabulary = vocabulary
        self.sandbox = GrammarSandbox(vocabulary.texts, vocabulary.eos_ids, limits)
        self.sandbox.warm()  # the worker opens the vocabulary while this process does, too
        self.trie: LLTokenizer = open_trie(vocabulary.texts, sorted(vocabulary.eos_ids))
