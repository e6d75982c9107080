"""Compiling: without llguidance, from many threads, with forms that are kept and forms that are dropped."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarSandbox
from holdfast.structured import compiler as grammar_compiler
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.spec import write_grammar
from support.grammar_walks import BYTE_EOS, BYTE_VOCAB, byte_bench, needs_llguidance

FORM = StructuredOutput(choice=["yes", "no"])


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_bench().tokenizer, BYTE_VOCAB, BYTE_EOS)


def test_without_llguidance_one_command_is_named(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'holdfast\[structured\]'"):
        compiler.compile(FORM)
    compiler.close()


def test_without_llguidance_everything_imports() -> None:
    code = "import sys; sys.modules['llguidance'] = None; import holdfast.structured.compiler, holdfast.engine.builder"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_llguidance
def test_llguidance_waits_for_the_first_form() -> None:
    code = (
        "import sys, holdfast.structured.compiler as made; from holdfast.bench.tiny import byte_tokenizer\n"
        "compiler = made.GrammarCompiler(byte_tokenizer(), 300, frozenset({290}))\n"
        "assert 'llguidance' not in sys.modules\n"
        "compiler.compile(made.StructuredOutput(json_object=True))\n"
        "assert 'llguidance' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_eos_is_refused() -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(InvalidRequest, match="ends the answer"):
        GrammarCompiler(byte_bench().tokenizer, BYTE_VOCAB, frozenset()).compile(FORM)


@needs_llguidance
def test_a_form_is_tried_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    try_form = GrammarSandbox.try_form

    def count(sandbox: GrammarSandbox, grammar: str, *, is_lark: bool) -> object:
        tried.append(grammar)
        return try_form(sandbox, grammar, is_lark=is_lark)

    monkeypatch.setattr(GrammarSandbox, "try_form", count)
    monkeypatch.setattr(grammar_compiler, "_MAX_FORMS", 2)
    forms = [StructuredOutput(choice=[text]) for text in "abc"]
    for index in (0, 1, 0, 0, 2, 0, 1):  # 2 drops 1, the one not asked for longest
        compiler.compile(forms[index])
    assert tried == [write_grammar(forms[index]) for index in (0, 1, 2, 1)]
    monkeypatch.setattr(grammar_compiler, "_MAX_FORM_BYTES", 0)
    compiler.compile(forms[2])
    compiler.compile(forms[2])  # even one that is too large is kept until the next
    assert len(tried) == 5
    compiler.close()


@needs_llguidance
def test_many_threads(compiler: GrammarCompiler) -> None:
    def work(seed: int) -> list[bytes | None]:
        chance = random.Random(seed)
        forms = [StructuredOutput(regex=f"[a-z]{{1,{count}}}") for count in (3, 4, 5)]
        masks = []
        for _ in range(20):
            grammar = compiler.compile(chance.choice(forms))
            grammar.commit(byte_bench().encode("a")[0])
            masks += grammar.masks(byte_bench().encode("b"), 2)
        return masks

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(16)))
    assert results == [results[0]] * 16
    compiler.close()


@needs_llguidance
def test_a_lost_process_is_replaced(compiler: GrammarCompiler) -> None:
    compiler.compile(FORM)
    bench = compiler._bench
    assert bench is not None
    process = bench.sandbox._holder._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    compiler.compile(StructuredOutput(choice=["another"]))
    compiler.close()
    compiler.close()
    compiler.compile(StructuredOutput(choice=["and another"]))
    compiler.close()


@needs_llguidance
def test_the_process_goes_with_its_compiler(compiler: GrammarCompiler) -> None:
    own = GrammarCompiler(byte_bench().tokenizer, BYTE_VOCAB, BYTE_EOS)
    own.compile(FORM)
    assert own._bench is not None
    process = own._bench.sandbox._holder._process
    assert process is not None and process.poll() is None
    del own
    assert process.wait(10) is not None


@needs_llguidance
def test_a_process_that_cannot_be_started_is_said(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InvalidRequest, match="broke off"):
        compiler.compile(FORM)
    monkeypatch.undo()
    compiler.compile(FORM)
    compiler.close()
