"""One answer's grammar: masks after candidates, invalid candidates, the end, restarts, and
limits."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.structured_output import Grammar, StructuredOutput
from holdfast.sandbox import grammar_worker
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured import matcher as grammar_matcher
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import write_grammar
from holdfast.structured.vocabulary import Vocabulary
from support.grammar_walks import (
    BYTE_EOS,
    BYTE_VOCAB,
    HARNESSES,
    GrammarHarness,
    HarnessFactory,
    byte_harness,
    choose_any,
    needs_llguidance,
)

pytestmark = needs_llguidance

SPECS: list[dict[str, Any]] = [
    {"json_object": True},
    {
        "json_schema": {
            "type": "object",
            "properties": {"a": {"type": "string", "maxLength": 30}, "b": {"enum": ["x1", "x2", "y"]}},
            "required": ["a"],
        }
    },
    {"regex": r"(\w+[ ,.])*(yes|no)!"},
    {"choice": ["alpha", "alphabet", "beta", "gamma delta"]},
    {"lark": 'start: s\ns: "a" "x" "1" s | "b" "x" "2" s | ("x" "1" "2")* "!"'},
    {"lark": "start: (word | number)+\nword[lazy]: /[a-z]*;/\nnumber: /[0-9]+/"},
]
EOS = min(BYTE_EOS)


def draw(
    harness: GrammarHarness, grammar: Any, rng: random.Random, max_len: int = 60
) -> tuple[list[int], list[bytes]]:
    """A random answer and the mask before each of its tokens."""
    ids, masks = [], []
    for _ in range(max_len):
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        ids.append(harness.choose(int.from_bytes(mask, "little"), rng))
        masks.append(mask)
        grammar.commit(ids[-1])
        if ids[-1] in harness.eos_ids:
            break
    return ids, masks


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: next(iter(spec)))
def test_mask_depends_on_tokens_only(make: HarnessFactory, spec: dict[str, Any]) -> None:
    """Committed one by one, tried as candidates among others, after a restart, or beside other
    answers: the same bits."""
    harness = make()
    rng = random.Random(11)
    paths = [draw(harness, harness.compile_alone(**spec), rng) for _ in range(3)]
    for ids, masks in paths:
        grammar = harness.compile(**spec)
        for position in range(len(ids)):
            for others, _ in paths:  # tokens of other answers, and invalid ones
                tried = [*others[rng.randrange(len(others)) :][:5], rng.randrange(harness.vocab_size)]
                rng.shuffle(tried)
                grammar.masks(tried, rng.randrange(1, len(tried) + 2))
                grammar.count_valid(tried)
            drafts = ids[position : position + rng.randrange(8)]
            if drafts and drafts[-1] in harness.eos_ids:
                drafts.pop()
            assert grammar.count_valid(drafts) == len(drafts)
            num_masks = rng.randrange(1, len(drafts) + 2)
            expected = [*masks[position:], None][: len(drafts) + 1][-num_masks:]
            got = grammar.masks(drafts, num_masks)
            assert [mask for mask, other in zip(got, expected, strict=True) if other is not None] == [
                mask for mask in expected if mask is not None
            ]
            grammar.commit(ids[position])
        grammar.restart()
        for id_, mask in zip(ids, masks, strict=True):
            assert grammar.masks((), 1) == [mask]
            grammar.commit(id_)


@pytest.mark.parametrize("make", HARNESSES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: next(iter(spec)))
def test_growing_windows_give_the_same_masks(make: HarnessFactory, spec: dict[str, Any]) -> None:
    """Fast passes need the mask after one candidate more each time, a window all of them; some
    candidates are accepted."""
    harness = make()
    rng = random.Random(12)
    ids, masks = draw(harness, harness.compile_alone(**spec), rng)
    ids.pop()  # perhaps eos, which no candidate follows
    grammar = harness.compile(**spec)
    position = 0
    while position < len(ids):
        window = ids[position : position + rng.randrange(1, 7)]
        wrong = rng.randrange(len(window)) if rng.random() < 0.4 else len(window)
        proposed = window[:wrong] + [rng.randrange(harness.vocab_size) for _ in window[wrong:]]
        for count in range(len(window) + 1):
            (mask,) = grammar.masks(proposed[:count], 1)
            assert count > wrong or mask == masks[position + count]
        rows = grammar.masks(proposed, len(proposed) + 1)
        assert rows[: wrong + 1] == masks[position : position + wrong + 1]
        for id_ in ids[position : position + wrong + 1]:  # the accepted candidates and the token after them
            grammar.commit(id_)
        position += wrong + 1


def test_mask_ignores_rejected_candidates() -> None:
    """What llguidance itself gets wrong after a rollback: the lexer cannot tell "a" from "b" here,
    the parser can."""
    words = Vocabulary((b"", b"a", b"b", b"x", b"x1", b"x2", b"1", b"2"), frozenset({0}))
    trie = open_trie(words.texts, [0])
    text = write_grammar(StructuredOutput(lark='start: "a" "x" "1" | "b" "x" "2"'))
    grammar = MatcherGrammar(CompiledGrammar(lambda: open_matcher(trie, text)), words)
    assert [mask and mask[0] for mask in grammar.masks([1], 2)] == [0b110, 0b1_1000]
    assert [mask and mask[0] for mask in grammar.masks([2], 2)] == [0b110, 0b10_1000]
    grammar.commit(2)
    assert grammar.masks((), 1)[0] == bytes([0b10_1000, 0, 0, 0])


@pytest.fixture
def harness() -> GrammarHarness:
    return byte_harness()


def bits(mask: bytes | None) -> set[int]:
    assert mask is not None
    assert len(mask) == -(-BYTE_VOCAB // 32) * 4
    return {id_ for id_ in range(8 * len(mask)) if mask[id_ // 8] >> id_ % 8 & 1}


def test_no_mask_after_an_invalid_candidate(harness: GrammarHarness) -> None:
    grammar = harness.compile(choice=["abc"])
    a, b, _, z = harness.encode("abcz")
    for wrong in (z, 257, BYTE_VOCAB - 1, BYTE_VOCAB, 1 << 40, -1, EOS):
        assert grammar.masks([a, wrong, b], 4)[2:] == [None, None]
        assert [bits(row) for row in grammar.masks([a, wrong, b], 4)[:2]] == [{a}, {b}]
        assert grammar.masks([a, wrong, b], 1) == [None]
        assert grammar.count_valid([a, wrong, b]) == 1
        assert grammar.problem is None
    assert grammar.count_valid([]) == 0


def test_eos_is_allowed_only_at_complete_text(harness: GrammarHarness) -> None:
    grammar = harness.compile(regex="ab?")
    a, b = harness.encode("ab")
    assert grammar.count_valid([a, b, EOS]) == 3
    assert grammar.count_valid([a, EOS, b]) == 2
    assert grammar.count_valid([EOS]) == 0
    grammar.commit(a)
    assert bits(grammar.masks((), 1)[0]) == {b, *BYTE_EOS}
    assert grammar.count_valid([max(BYTE_EOS)]) == 1
    grammar.commit(b)
    for _ in range(2):  # complete: a query does not change it
        assert bits(grammar.masks((), 1)[0]) == BYTE_EOS
        assert grammar.count_valid([EOS]) == 1
        assert grammar.count_valid([b]) == 0
        assert grammar.masks([b], 2)[1] is None
        assert grammar.masks([EOS], 2)[1] is None
    grammar.commit(EOS)
    assert grammar.count_valid([a]) == 0
    assert grammar.masks((), 1) == [None]
    assert grammar.problem is None
    grammar.restart()
    assert bits(grammar.masks((), 1)[0]) == {a}


def test_dead_end_sets_problem() -> None:
    """The vocabulary has no closing quote."""
    words = Vocabulary((b"", b'"', b"a", b"x"), frozenset({0}))
    trie = open_trie(words.texts, [0])
    text = write_grammar(StructuredOutput(regex='"a!|x'))
    grammar = MatcherGrammar(CompiledGrammar(lambda: open_matcher(trie, text)), words)
    rows = grammar.masks([1, 2], 3)
    assert rows[2] == bytes(4)
    assert grammar.problem is None  # a token may follow the committed ones
    grammar.commit(1)
    assert grammar.problem is None
    grammar.commit(2)
    assert "leads nowhere" in (grammar.problem or "")
    assert grammar.masks((), 1) == [bytes(4)]
    grammar.restart()
    assert grammar.problem is None
    grammar.commit(3)
    assert grammar.masks((), 1) == [b"\1\0\0\0"]


def test_full_lexer_is_replaced(harness: GrammarHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers share a lexer that has room for any one of them, but not for all. No mask changes."""
    spec = {"regex": "(.*a.{20}|.*b.{19}|.*c.{18})x"}
    letters = harness.encode("abc")
    paths = [random.Random(seed).choices(letters, k=40) for seed in range(12)]
    expected = [harness.compile_alone(**spec).masks(path, 41) for path in paths]
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 100)
    text = write_grammar(StructuredOutput(**spec))
    num_opened = 0

    def open_counted() -> Any:
        nonlocal num_opened
        num_opened += 1
        return open_matcher(harness.trie, text)

    shared = CompiledGrammar(open_counted)
    grammars = [MatcherGrammar(shared, harness.vocabulary) for _ in paths]
    for position in range(40):
        for path, masks, grammar in zip(paths, expected, grammars, strict=True):
            drafts = path[position : position + position % 4]
            assert grammar.masks(drafts, 1) == [masks[position + len(drafts)]]
            assert grammar.problem is None
            grammar.commit(path[position])
    assert num_opened > 1


def too_many_states(harness: GrammarHarness, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 30)
    return harness.compile_alone(regex=".*[!-O].{20}x")


def too_slow(harness: GrammarHarness, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    monkeypatch.setattr(grammar_matcher, "_MAX_CALL_SECONDS", -1.0)
    return harness.compile_alone(json_object=True)


def too_many_items(harness: GrammarHarness, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    """The mask allows the brace; only consuming it shows that too many items follow."""
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_items_in_row", 50)
    properties = {f"p{index}": {"type": "integer"} for index in range(100)}
    return harness.compile_alone(json_schema={"type": "object", "properties": properties})


@pytest.mark.parametrize("make", [too_many_states, too_slow, too_many_items])
def test_exceeded_limit_sets_problem(
    harness: GrammarHarness,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[GrammarHarness, pytest.MonkeyPatch], Grammar],
) -> None:
    grammar = make(harness, monkeypatch)
    rng = random.Random(3)
    for _ in range(40):
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        if not any(mask):
            break
        assert grammar.problem is None
        token_id = choose_any(int.from_bytes(mask, "little"), rng)
        drafts = grammar.masks([token_id], 1)
        grammar.commit(token_id)
    else:
        pytest.fail("no limit was exceeded")
    assert grammar.problem is not None
    assert (
        "cannot be followed" in grammar.problem and "\n" not in grammar.problem and len(grammar.problem) < 400
    )
    assert json.dumps(grammar.problem)
    assert grammar.masks((), 1) == [mask]
    if make is not too_slow:
        assert drafts == [mask]  # known as soon as the candidate was tried
