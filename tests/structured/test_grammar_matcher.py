"""One answer's grammar: masks behind candidates, garbage, the end, beginning again, and what to say when it cannot go on."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.grammar import Grammar
from holdfast.core.structured_output import StructuredOutput
from holdfast.sandbox import grammar_worker
from holdfast.sandbox.grammar_worker import open_matcher, open_trie
from holdfast.structured import matcher as grammar_matcher
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import write_grammar
from holdfast.structured.vocabulary import Vocabulary
from support.grammar_walks import (
    BENCHES,
    BYTE_EOS,
    BYTE_VOCAB,
    Bench,
    BenchMaker,
    byte_bench,
    choose_any,
    needs_llguidance,
)

pytestmark = needs_llguidance

FORMS: list[dict[str, Any]] = [
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
    bench: Bench, grammar: Any, chance: random.Random, max_len: int = 60
) -> tuple[list[int], list[bytes]]:
    """A random answer and the mask before each of its tokens."""
    ids, masks = [], []
    for _ in range(max_len):
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        ids.append(bench.choose(int.from_bytes(mask, "little"), chance))
        masks.append(mask)
        grammar.commit(ids[-1])
        if ids[-1] in bench.eos_ids:
            break
    return ids, masks


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_a_mask_is_a_function_of_the_tokens_alone(make: BenchMaker, form: dict[str, Any]) -> None:
    """Committed one by one, tried as candidates amid other tries, begun again, or beside others: the same bits."""
    bench = make()
    chance = random.Random(11)
    paths = [draw(bench, bench.compile_alone(**form), chance) for _ in range(3)]
    for ids, masks in paths:
        grammar = bench.compile(**form)
        for place in range(len(ids)):
            for others, _ in paths:  # anybody's tokens, and nonsense
                tried = [*others[chance.randrange(len(others)) :][:5], chance.randrange(bench.vocab_size)]
                chance.shuffle(tried)
                grammar.masks(tried, chance.randrange(1, len(tried) + 2))
                grammar.count_valid(tried)
            ahead = ids[place : place + chance.randrange(8)]
            if ahead and ahead[-1] in bench.eos_ids:
                ahead.pop()
            assert grammar.count_valid(ahead) == len(ahead)
            num_masks = chance.randrange(1, len(ahead) + 2)
            expected = [*masks[place:], None][: len(ahead) + 1][-num_masks:]
            got = grammar.masks(ahead, num_masks)
            assert [mask for mask, other in zip(got, expected, strict=True) if other is not None] == [
                mask for mask in expected if mask is not None
            ]
            grammar.commit(ids[place])
        grammar.restart()
        for id_, mask in zip(ids, masks, strict=True):
            assert grammar.masks((), 1) == [mask]
            grammar.commit(id_)


@pytest.mark.parametrize("make", BENCHES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_windows_grow_token_by_token(make: BenchMaker, form: dict[str, Any]) -> None:
    """Fast passes ask behind one candidate more each time, a verify pass behind all of them, and some stand."""
    bench = make()
    chance = random.Random(12)
    ids, masks = draw(bench, bench.compile_alone(**form), chance)
    ids.pop()  # perhaps the end, which no candidate stands behind
    grammar = bench.compile(**form)
    place = 0
    while place < len(ids):
        window = ids[place : place + chance.randrange(1, 7)]
        wrong = chance.randrange(len(window)) if chance.random() < 0.4 else len(window)
        proposed = window[:wrong] + [chance.randrange(bench.vocab_size) for _ in window[wrong:]]
        for count in range(len(window) + 1):
            (mask,) = grammar.masks(proposed[:count], 1)
            assert count > wrong or mask == masks[place + count]
        rows = grammar.masks(proposed, len(proposed) + 1)
        assert rows[: wrong + 1] == masks[place : place + wrong + 1]
        for id_ in ids[place : place + wrong + 1]:  # what stands, and the token behind it
            grammar.commit(id_)
        place += wrong + 1


def test_a_mask_does_not_remember_a_path_that_was_not_taken() -> None:
    """What llguidance itself gets wrong behind a rollback: the lexer cannot tell "a" from "b" here, the parser can."""
    words = Vocabulary((b"", b"a", b"b", b"x", b"x1", b"x2", b"1", b"2"), frozenset({0}))
    trie = open_trie(words.texts, [0])
    text = write_grammar(StructuredOutput(lark='start: "a" "x" "1" | "b" "x" "2"'))
    grammar = MatcherGrammar(CompiledGrammar(lambda: open_matcher(trie, text)), words)
    assert [mask and mask[0] for mask in grammar.masks([1], 2)] == [0b110, 0b1_1000]
    assert [mask and mask[0] for mask in grammar.masks([2], 2)] == [0b110, 0b10_1000]
    grammar.commit(2)
    assert grammar.masks((), 1)[0] == bytes([0b10_1000, 0, 0, 0])


def spell(bench: Bench, text: str) -> list[int]:
    return bench.encode(text)


@pytest.fixture
def bench() -> Bench:
    return byte_bench()


def bits(mask: bytes | None) -> set[int]:
    assert mask is not None
    assert len(mask) == -(-BYTE_VOCAB // 32) * 4
    return {id_ for id_ in range(8 * len(mask)) if mask[id_ // 8] >> id_ % 8 & 1}


def test_rows_are_the_last_places(bench: Bench) -> None:
    grammar = bench.compile(choice=["abc", "abd"])
    a, b, c, d = spell(bench, "abcd")
    rows = grammar.masks([a, b, c], 4)
    assert [bits(row) for row in rows] == [{a}, {b}, {c, d}, set(BYTE_EOS)]
    assert grammar.masks([a, b, c], 2) == rows[2:]
    assert grammar.masks([a, b, c], 1) == rows[3:]
    assert grammar.masks((), 1) == rows[:1]


def test_behind_an_invalid_candidate_there_is_no_mask(bench: Bench) -> None:
    grammar = bench.compile(choice=["abc"])
    a, b, _, z = spell(bench, "abcz")
    for wrong in (z, 257, BYTE_VOCAB - 1, BYTE_VOCAB, 1 << 40, -1, EOS):
        assert grammar.masks([a, wrong, b], 4)[2:] == [None, None]
        assert [bits(row) for row in grammar.masks([a, wrong, b], 4)[:2]] == [{a}, {b}]
        assert grammar.masks([a, wrong, b], 1) == [None]
        assert grammar.count_valid([a, wrong, b]) == 1
        assert grammar.problem is None
    assert grammar.count_valid([]) == 0


def test_the_end(bench: Bench) -> None:
    grammar = bench.compile(regex="ab?")
    a, b = spell(bench, "ab")
    assert grammar.count_valid([a, b, EOS]) == 3
    assert grammar.count_valid([a, EOS, b]) == 2
    assert grammar.count_valid([EOS]) == 0
    grammar.commit(a)
    assert bits(grammar.masks((), 1)[0]) == {b, *BYTE_EOS}
    assert grammar.count_valid([max(BYTE_EOS)]) == 1
    grammar.commit(b)
    for _ in range(2):  # complete: asking does not change it
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


def test_answers_do_not_touch_one_another(bench: Bench) -> None:
    one, other = bench.compile(choice=["abc", "xyz"]), bench.compile(choice=["abc", "xyz"])
    one.commit(spell(bench, "a")[0])
    other.commit(spell(bench, "x")[0])
    assert bits(one.masks((), 1)[0]) == set(spell(bench, "b"))
    assert bits(other.masks((), 1)[0]) == set(spell(bench, "y"))


def test_a_dead_end_says_so() -> None:
    """The vocabulary has no closing quote."""
    words = Vocabulary((b"", b'"', b"a", b"x"), frozenset({0}))
    trie = open_trie(words.texts, [0])
    text = write_grammar(StructuredOutput(regex='"a!|x'))
    grammar = MatcherGrammar(CompiledGrammar(lambda: open_matcher(trie, text)), words)
    rows = grammar.masks([1, 2], 3)
    assert rows[2] == bytes(4)
    assert grammar.problem is None  # behind the committed tokens it can go on
    grammar.commit(1)
    assert grammar.problem is None
    grammar.commit(2)
    assert "leads nowhere" in (grammar.problem or "")
    assert grammar.masks((), 1) == [bytes(4)]
    grammar.restart()
    assert grammar.problem is None
    grammar.commit(3)
    assert grammar.masks((), 1) == [b"\1\0\0\0"]


def test_a_full_lexer_is_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers share a lexer that has room for any one of them, but not for all. None of them can tell."""
    form = {"regex": "(.*a.{20}|.*b.{19}|.*c.{18})x"}
    letters = bench.encode("abc")
    paths = [random.Random(seed).choices(letters, k=40) for seed in range(12)]
    expected = [bench.compile_alone(**form).masks(path, 41) for path in paths]
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 100)
    text = write_grammar(StructuredOutput(**form))
    num_opened = 0

    def open_counted() -> Any:
        nonlocal num_opened
        num_opened += 1
        return open_matcher(bench.trie, text)

    shared = CompiledGrammar(open_counted)
    grammars = [MatcherGrammar(shared, bench.vocabulary) for _ in paths]
    for place in range(40):
        for path, masks, grammar in zip(paths, expected, grammars, strict=True):
            ahead = path[place : place + place % 4]
            assert grammar.masks(ahead, 1) == [masks[place + len(ahead)]]
            assert grammar.problem is None
            grammar.commit(path[place])
    assert num_opened > 1


def too_many_states(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 30)
    return bench.compile_alone(regex=".*[!-O].{20}x")


def too_slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    monkeypatch.setattr(grammar_matcher, "_MAX_CALL_SECONDS", -1.0)
    return bench.compile_alone(json_object=True)


def too_many_items(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    """The mask allows the brace, and only taking it shows that there are too many ways to go on."""
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_items_in_row", 50)
    properties = {f"p{index}": {"type": "integer"} for index in range(100)}
    return bench.compile_alone(json_schema={"type": "object", "properties": properties})


@pytest.mark.parametrize("make", [too_many_states, too_slow, too_many_items])
def test_a_form_that_becomes_too_hard(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, make: Callable[[Bench, pytest.MonkeyPatch], Grammar]
) -> None:
    grammar = make(bench, monkeypatch)
    chance = random.Random(3)
    for _ in range(40):
        (mask,) = grammar.masks((), 1)
        assert mask is not None
        if not any(mask):
            break
        assert grammar.problem is None
        token_id = choose_any(int.from_bytes(mask, "little"), chance)
        ahead = grammar.masks([token_id], 1)
        grammar.commit(token_id)
    else:
        pytest.fail("it never became too hard")
    assert grammar.problem is not None
    assert (
        "cannot be followed" in grammar.problem and "\n" not in grammar.problem and len(grammar.problem) < 400
    )
    assert json.dumps(grammar.problem)
    assert grammar.masks((), 1) == [mask]
    if make is not too_slow:
        assert ahead == [mask]  # it was known as soon as the candidate was tried
