"""Random answers sampled from the masks of a grammar, as from a random model."""

import random
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import pytest

from holdfast.core.structured_output import Grammar, StructuredOutput
from holdfast.models.locate import locate
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import write_grammar
from holdfast.structured.vocabulary import Vocabulary, read_vocabulary
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer

needs_llguidance = pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")

BYTE_VOCAB = 300  # ids above the 256 bytes have no text
BYTE_EOS = frozenset({290, 291})
SMOLLM2_EOS = frozenset({0, 2})
_STRUCTURE = {
    text.encode()
    for text in ('"', "}", "]", ",", ":", '":', '",', '"}', '"]', "1", "true", "@", ".", "-", ")")
}


class GrammarHarness:
    """A tokenizer and a grammar compiler for it."""

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

    def compile(self, **spec: Any) -> Grammar:
        return self.compiler.compile(StructuredOutput(**spec))

    def compile_alone(self, **spec: Any) -> Grammar:
        """A grammar that was not tried and shares nothing with any other."""
        text = write_grammar(StructuredOutput(**spec))
        return MatcherGrammar(CompiledGrammar(lambda: open_matcher(self.trie, text)), self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def walk(self, grammar: Grammar, rng: random.Random, max_len: int = 200) -> Iterator[tuple[str, int]]:
        """Commits a random answer. Yields, for each position, the text before it and the allowed
        tokens (as bits)."""
        ids: list[int] = []
        for _ in range(max_len):
            (mask,) = grammar.masks((), 1)
            assert mask is not None
            bits = int.from_bytes(mask, "little")
            yield self.tokenizer.decode(ids), bits
            id_ = self.choose(bits, rng)
            grammar.commit(id_)
            if id_ in self.eos_ids:
                return
            ids.append(id_)

    def choose(self, bits: int, rng: random.Random) -> int:
        """An allowed token: often one that makes progress, else any."""
        liked = [id_ for id_ in self.structure | self.eos_ids if bits >> id_ & 1]
        if liked and rng.random() < 0.6:
            return rng.choice(sorted(liked))
        return choose_any(bits, rng)


def choose_any(bits: int, rng: random.Random) -> int:
    from_bit = rng.randrange(bits.bit_length())
    above = bits >> from_bit
    return from_bit + (above & -above).bit_length() - 1


@cache
def byte_harness() -> GrammarHarness:
    return GrammarHarness(byte_tokenizer(), BYTE_VOCAB, BYTE_EOS)


@cache
def smollm2_harness() -> GrammarHarness:
    """The default model's vocabulary, with more logits than tokens, as many models have."""
    return GrammarHarness(open_tokenizer(locate(None).path), 49152 + 100, SMOLLM2_EOS)


HARNESSES = [
    pytest.param(byte_harness, id="bytes"),
    pytest.param(smollm2_harness, id="smollm2", marks=pytest.mark.smollm2),
]
HarnessFactory = Callable[[], GrammarHarness]
