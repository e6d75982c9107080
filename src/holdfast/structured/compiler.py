"""From the form a client asks for to the grammar of one answer.

llguidance is imported with the first form and not before: everything else runs without it. A form is tried in a process of
its own (`grammar_sandbox`), then compiled here, and kept for the answers that ask for it next. The invariant: a
grammar that is handed out can be followed; whatever speaks against a form is said as an `InvalidRequest`.
"""

import threading
from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarLimits, GrammarSandbox
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import NOUNS, write_grammar
from holdfast.structured.vocabulary import Vocabulary, read_vocabulary
from holdfast.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_MAX_FORMS = 64
_MAX_FORM_BYTES = 512 << 20


class GrammarCompiler:
    """Compiles forms for one model, from any thread. vocab_size is the number of logits the model gives."""

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
        self._bench: _Bench | None = None
        self._forms: OrderedDict[StructuredOutput, CompiledGrammar] = OrderedDict()
        self._forms_lock = threading.Lock()  # held for a moment
        self._bench_lock = threading.Lock()  # held while a form is tried and compiled

    def compile(self, form: StructuredOutput) -> MatcherGrammar:
        """The grammar of one answer, at its beginning. Refuses what is wrong, too large or too slow."""
        compiled = self._find(form)
        if compiled is None:
            with self._bench_lock:
                compiled = self._find(form) or self._compile(form)
        assert self._bench is not None
        return MatcherGrammar(compiled, self._bench.vocabulary)

    def close(self) -> None:
        """End the process forms are tried in; a later form starts another."""
        with self._bench_lock:
            if self._bench is not None:
                self._bench.sandbox.close()

    def _find(self, form: StructuredOutput) -> CompiledGrammar | None:
        with self._forms_lock:
            compiled = self._forms.get(form)
            if compiled is not None:
                self._forms.move_to_end(form)
            return compiled

    def _compile(self, form: StructuredOutput) -> CompiledGrammar:
        grammar = write_grammar(form)
        bench = self._set_up()
        is_lark = form.kind == "lark"
        trial = bench.sandbox.try_form(grammar, is_lark=is_lark)
        if trial.fault is not None:
            raise InvalidRequest(f"the {NOUNS[form.kind]} cannot be used: {trial.fault}")
        compiled = CompiledGrammar(
            lambda: open_matcher(bench.trie, grammar, is_lark=is_lark), trial.num_bytes
        )
        if compiled.fault is not None:
            raise InvalidRequest(f"the {NOUNS[form.kind]} cannot be used: {compiled.fault}")
        self._keep(form, compiled)
        return compiled

    def _keep(self, form: StructuredOutput, compiled: CompiledGrammar) -> None:
        with self._forms_lock:
            self._forms[form] = compiled
            total = sum(one.num_bytes for one in self._forms.values())
            while len(self._forms) > _MAX_FORMS or (total > _MAX_FORM_BYTES and len(self._forms) > 1):
                _, oldest = self._forms.popitem(last=False)
                total -= oldest.num_bytes

    def _set_up(self) -> "_Bench":
        if self._bench is None:
            if find_spec("llguidance") is None:
                raise InvalidRequest(
                    "structured output needs llguidance, which is not installed; "
                    "install it with: pip install 'holdfast[structured]'"
                )
            vocabulary = read_vocabulary(self._tokenizer, self._vocab_size, self._eos_ids)
            self._bench = _Bench(vocabulary, self._limits)
        return self._bench


class _Bench:
    """What compiling needs, made with the first form."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits | None) -> None:
        self.vocabulary = vocabulary
        self.sandbox = GrammarSandbox(vocabulary.texts, vocabulary.eos_ids, limits)
        self.sandbox.warm()  # opens the vocabulary over there while it is opened here
        self.trie: LLTokenizer = open_trie(vocabulary.texts, sorted(vocabulary.eos_ids))
