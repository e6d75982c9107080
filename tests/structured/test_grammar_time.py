"""How much work a grammar does, on a clock that its matcher moves: nothing twice, nothing in vain, and never without end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.structured_output import StructuredOutput
from holdfast.sandbox import grammar_worker
from holdfast.sandbox.grammar_worker import open_matcher
from holdfast.structured import matcher as grammar_matcher
from holdfast.structured.matcher import CompiledGrammar, MatcherGrammar
from holdfast.structured.spec import write_grammar
from support.grammar_walks import Bench, byte_bench, needs_llguidance

pytestmark = needs_llguidance

AMBIGUOUS = 'start: s\ns: s s s | s s | "a"'


@dataclass
class Work:
    """What was done, and how long it takes: seconds by the text before the place."""

    mask_seconds: Callable[[str], float] = lambda text: 0.0
    take_seconds: Callable[[str], float] = lambda text: 0.0
    now: float = 0.0
    masks: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    num_opened: int = 0

    def forget(self) -> None:
        self.masks.clear()
        self.taken.clear()
        self.num_opened = 0


class WorkingMatcher:
    """A matcher that notes what it is asked, and moves the clock."""

    def __init__(self, matcher: Any, work: Work, bench: Bench, ids: Sequence[int] = ()) -> None:
        self._matcher, self._work, self._bench, self._ids = matcher, work, bench, list(ids)

    @property
    def _text(self) -> str:
        return self._bench.tokenizer.decode(self._ids)

    def deep_copy(self) -> "WorkingMatcher":
        return WorkingMatcher(self._matcher.deep_copy(), self._work, self._bench, self._ids)

    def compute_bitmask(self) -> bytes:
        self._work.masks.append(self._text)
        self._work.now += self._work.mask_seconds(self._text)
        mask: bytes = self._matcher.compute_bitmask()
        return mask

    def consume_token(self, token_id: int) -> None:
        self._note(token_id)
        self._matcher.consume_token(token_id)

    def try_consume_tokens(self, token_ids: list[int]) -> int:
        taken: int = self._matcher.try_consume_tokens(token_ids)
        for token_id in token_ids[:taken]:
            self._note(token_id)
        return taken

    def _note(self, token_id: int) -> None:
        self._ids.append(token_id)
        self._work.taken.append(self._text)
        self._work.now += self._work.take_seconds(self._text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


@pytest.fixture
def bench() -> Bench:
    return byte_bench()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    clock = SimpleNamespace(thread_time=lambda: work.now, perf_counter=lambda: work.now)
    monkeypatch.setattr(grammar_matcher, "time", clock)
    return work


def follow(bench: Bench, work: Work, **form: Any) -> MatcherGrammar:
    text = write_grammar(StructuredOutput(**form))

    def open_working() -> Any:
        work.num_opened += 1
        return WorkingMatcher(open_matcher(bench.trie, text, is_lark="lark" in form), work, bench)

    grammar = MatcherGrammar(CompiledGrammar(open_working), bench.vocabulary)
    work.forget()
    return grammar


def test_no_place_is_computed_twice(bench: Bench, work: Work) -> None:
    """Fast passes ask behind one candidate more each time, the window behind all of them, and all are committed."""
    grammar = follow(bench, work, regex="[a-z]*")
    ids = bench.encode("abcd")
    for count in range(len(ids)):
        grammar.masks(ids[:count], 1)
    rows = grammar.masks(ids, len(ids) + 1)
    assert all(rows) and work.masks == ["", "a", "ab", "abc", "abcd"]
    for id_ in (*ids, *bench.encode("e")):
        grammar.commit(id_)
    assert grammar.masks((), 1) == rows[-1:]
    assert work.taken == ["a", "ab", "abc", "abcd", "abcde"]
    assert work.masks[5:] == ["abcde"]


def test_a_slow_place_behind_a_wrong_candidate_is_no_failure(bench: Bench, work: Work) -> None:
    work.mask_seconds = lambda text: 9.0 if text == "c" else 0.0
    grammar = follow(bench, work, choice=["ab", "cd"])
    a, b, c, d = bench.encode("abcd")
    first, behind, last = grammar.masks([c, d], 3)
    assert first and any(first) and behind is not None and not any(behind) and last is None
    assert grammar.problem is None
    grammar.commit(a)
    (mask,) = grammar.masks((), 1)
    assert mask is not None and mask[b // 8] >> b % 8 & 1
    assert grammar.problem is None
    grammar.restart()
    assert grammar.masks((), 1) == [first]
    grammar.masks([c], 2)
    grammar.commit(c)
    assert "takes too long" in (grammar.problem or "")
    work.mask_seconds = lambda text: 0.0
    grammar.restart()
    grammar.commit(c)
    (mask,) = grammar.masks((), 1)
    assert mask is not None and mask[d // 8] >> d % 8 & 1


@pytest.mark.parametrize("kind", ["masks", "candidates", "committed"])
def test_a_call_is_bounded(bench: Bench, work: Work, kind: str) -> None:
    if kind == "masks":
        work.mask_seconds = lambda text: 0.02
    else:
        work.take_seconds = lambda text: 0.02
    grammar = follow(bench, work, regex="a*")
    ids = bench.encode("a" * 100)
    if kind == "committed":
        for id_ in ids:
            grammar.commit(id_)
        grammar.masks((), 1)
        assert grammar.problem is not None
        return
    rows = grammar.masks(ids, len(ids) + 1)
    assert work.now < 0.6
    assert grammar.problem is None  # behind the committed tokens
    failed = next(place for place, row in enumerate(rows) if row is not None and not any(row))
    assert set(rows[failed + 1 :]) == {None}
    for id_ in ids[:failed]:
        grammar.commit(id_)
    before = work.now
    assert grammar.masks(ids, len(ids) + 1) == [rows[failed], *[None] * len(ids)]
    assert work.now == before  # it is known
    assert grammar.count_valid(ids) == 0
    assert "takes too long" in (grammar.problem or "")


def test_an_answer_may_not_be_slow_for_ever(bench: Bench, work: Work) -> None:
    """Somewhat slow places are fine, slow ones few: those that were committed count, others do not."""
    work.mask_seconds = lambda text: 0.22 if len(text) % 10 == 9 else 0.02
    grammar = follow(bench, work, regex="[ab]*")
    a, b = bench.encode("ab")
    length = 0
    while length < 1000:
        (mask, *_) = grammar.masks([b], 2)
        assert mask is not None
        if not any(mask):
            break
        grammar.commit(a)
        length += 1
    assert length == 59  # the sixth slow place; an answer may have five


def test_guesses_are_fewer_where_a_place_takes_long(bench: Bench, work: Work) -> None:
    work.mask_seconds = lambda text: 0.02
    grammar = follow(bench, work, regex="a*")
    ids = bench.encode("a" * 30)
    assert grammar.count_valid(ids) == 30
    grammar.masks((), 1)
    assert grammar.count_valid(ids) == 2


def test_what_the_text_is_the_cause_of_is_not_tried_again(bench: Bench, work: Work) -> None:
    grammar = follow(bench, work, lark=AMBIGUOUS)
    (a,) = bench.encode("a")
    while any(grammar.masks([a], 2)[0] or b"") and len(work.taken) < 300:
        grammar.commit(a)
    assert "items" in (grammar.problem or "")
    assert work.num_opened == 0
    assert len(work.taken) == len({*work.taken})


def test_a_full_lexer_is_followed_again_in_bounded_time(
    bench: Bench, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 60)
    work.take_seconds = lambda text: 0.02
    grammar = follow(bench, work, regex=".*[!-O].{20}x")
    ids = bench.encode("!?a!b?!z!!!?!?!????!?!aaa!" * 4)
    for id_ in ids:
        before = work.now
        (mask,) = grammar.masks((), 1)
        assert work.now - before < 0.6
        if not any(mask or b"1"):
            break
        grammar.commit(id_)
    assert "states" in (grammar.problem or "")


def test_an_ambiguous_grammar_gives_up_early(bench: Bench) -> None:
    """By a limit that is a function of the text: every answer, on every machine, gets as far."""
    (a,) = bench.encode("a")
    lengths = set()
    for window in (1, 7):
        grammar = bench.compile(lark=AMBIGUOUS)
        length = 0
        while any(grammar.masks([a] * window, window + 1)[0] or b"") and length < 300:
            grammar.commit(a)
            length += 1
        assert "items" in (grammar.problem or "")
        lengths.add(length)
    assert lengths == {100}
