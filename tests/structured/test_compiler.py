"""The grammar compiler: without llguidance, from many threads, its cache and its worker process."""

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarSandbox, GrammarTrial
from holdfast.structured import compiler as grammar_compiler
from holdfast.structured.compiler import GrammarCompiler
from holdfast.structured.spec import write_grammar
from support.grammar_walks import BYTE_EOS, BYTE_VOCAB, byte_harness, needs_llguidance

OUTPUT = StructuredOutput(choice=["yes", "no"])


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_harness().tokenizer, BYTE_VOCAB, BYTE_EOS)


def test_missing_llguidance_names_the_install_command(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequest, match="pip install llguidance"):
        compiler.compile(OUTPUT)
    compiler.close()


@needs_llguidance
def test_llguidance_is_imported_with_the_first_grammar() -> None:
    code = (
        "import sys, holdfast.engine.start.builder, holdfast.structured.compiler as made\n"
        "from holdfast.text.tokenizer import byte_tokenizer\n"
        "compiler = made.GrammarCompiler(byte_tokenizer(), 300, frozenset({290}))\n"
        "assert 'llguidance' not in sys.modules\n"
        "compiler.compile(made.StructuredOutput(json_object=True))\n"
        "assert 'llguidance' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_llguidance
def test_compiled_grammars_are_cached_and_evicted(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    try_grammar = GrammarSandbox.try_grammar

    def count(sandbox: GrammarSandbox, grammar: str, **settings: Any) -> object:
        tried.append(grammar)
        return try_grammar(sandbox, grammar, **settings)

    monkeypatch.setattr(GrammarSandbox, "try_grammar", count)
    monkeypatch.setattr(grammar_compiler, "_MAX_CACHED", 2)
    outputs = [StructuredOutput(choice=[text]) for text in "abc"]
    for index in (0, 1, 0, 0, 2, 0, 1):  # 2 evicts 1, the least recently used
        compiler.compile(outputs[index])
    assert tried == [write_grammar(outputs[index]) for index in (0, 1, 2, 1)]
    monkeypatch.setattr(grammar_compiler, "_MAX_CACHED_BYTES", 0)
    compiler.compile(outputs[2])
    compiler.compile(outputs[2])  # the newest stays, however large
    assert len(tried) == 5
    compiler.close()


@needs_llguidance
def test_threads_compile_concurrently(compiler: GrammarCompiler) -> None:
    def work(seed: int) -> list[bytes | None]:
        rng = random.Random(seed)
        outputs = [StructuredOutput(regex=f"[a-z]{{1,{count}}}") for count in (3, 4, 5)]
        masks = []
        for _ in range(20):
            grammar = compiler.compile(rng.choice(outputs))
            grammar.commit(byte_harness().encode("a")[0])
            masks += grammar.masks(byte_harness().encode("b"), 2)
        return masks

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(16)))
    assert results == [results[0]] * 16
    compiler.close()


SLOW = StructuredOutput(
    regex="(a|b)*a(a|b){14}c" + "|".join(f"(x{one}|y)*z{{1,{one + 40}}}" for one in range(60))
)


@needs_llguidance
def test_cancelled_compilation_ends_unless_another_caller_waits(compiler: GrammarCompiler) -> None:
    """The sandbox's trial is replaced by one that lasts until it is cancelled or released."""
    compiler.compile(OUTPUT)
    backend = compiler._backend
    assert backend is not None
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def try_slowly(grammar: str, *, token: CancelToken, **settings: Any) -> GrammarTrial:
        began.set()
        with token.on_cancel(release.set):
            assert release.wait(10)
        ended.set()
        token.check()
        return GrammarTrial(None)

    backend.sandbox.try_grammar = try_slowly  # type: ignore[method-assign, assignment]
    slow, tokens = StructuredOutput(choice=["slow"]), [CancelToken(), CancelToken()]

    def call(token: CancelToken) -> str:
        try:
            compiler.compile(slow, token)
        except Cancelled:
            return "cancelled"
        return "compiled"

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(call, token) for token in tokens]
        assert began.wait(10)
        while compiler._compiling[slow].num_callers < 2:
            time.sleep(0.001)
        compiler.compile(OUTPUT)  # a compiled grammar does not wait
        assert compiler.is_compiled(OUTPUT) and not compiler.is_compiled(slow)
        tokens[0].cancel()
        assert not ended.is_set()
        tokens[1].cancel()
        assert [one.result(10) for one in calls] == ["cancelled"] * 2 and ended.is_set()
    assert not compiler._compiling
    compiler.close()


@needs_llguidance
def test_cancelled_trial_ends_its_fork_and_keeps_the_worker(compiler: GrammarCompiler) -> None:
    compiler.compile(OUTPUT)
    backend = compiler._backend
    assert backend is not None
    (pid,) = backend.sandbox.pids
    token = CancelToken()
    timer = threading.Timer(0.2, token.cancel)
    timer.start()

    def try_until_cancelled() -> None:
        while True:
            backend.sandbox.try_grammar(write_grammar(SLOW), is_lark=False, token=token)

    with pytest.raises(Cancelled):
        try_until_cancelled()
    timer.join()
    assert backend.sandbox.try_grammar(write_grammar(OUTPUT), is_lark=False).fault is None
    assert backend.sandbox.pids == (pid,)
    compiler.close()
