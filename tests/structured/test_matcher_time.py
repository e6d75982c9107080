"""How much work a grammar does, on a simulated clock that its matcher advances: nothing twice, and
bounded."""

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
from support.grammar_walks import GrammarHarness, byte_harness, needs_llguidance

pytestmark = needs_llguidance

AMBIGUOUS = 'start: s\ns: s s s | s s | "a"'


@dataclass
class Work:
    """What was done, and the seconds it takes, by the text before the position."""

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
    """A matcher that logs its calls and advances the clock."""

    def __init__(self, matcher: Any, work: Work, harness: GrammarHarness, ids: Sequence[int] = ()) -> None:
        self._matcher, self._work, self._harness, self._ids = matcher, work, harness, list(ids)

    @property
    def _text(self) -> str:
        return self._harness.tokenizer.decode(self._ids)

    def deep_copy(self) -> "WorkingMatcher":
        return WorkingMatcher(self._matcher.deep_copy(), self._work, self._harness, self._ids)

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
def harness() -> GrammarHarness:
    return byte_harness()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    clock = SimpleNamespace(thread_time=lambda: work.now, perf_counter=lambda: work.now)
    monkeypatch.setattr(grammar_matcher, "time", clock)
    return work


def follow(harness: GrammarHarness, work: Work, **spec: Any) -> MatcherGrammar:
    text = write_grammar(StructuredOutput(**spec))

    def open_working() -> Any:
        work.num_opened += 1
        return WorkingMatcher(open_matcher(harness.trie, text, is_lark="lark" in spec), work, harness)

    grammar = MatcherGrammar(CompiledGrammar(open_working), harness.vocabulary)
    work.forget()
    return grammar


def test_no_position_is_computed_twice(harness: GrammarHarness, work: Work) -> None:
    """Fast passes need one mask more each time, the window all of them; all are committed."""
    grammar = follow(harness, work, regex="[a-z]*")
    ids = harness.encode("abcd")
    for count in range(len(ids)):
        grammar.masks(ids[:count], 1)
    rows = grammar.masks(ids, len(ids) + 1)
    assert all(rows) and work.masks == ["", "a", "ab", "abc", "abcd"]
    for id_ in (*ids, *harness.encode("e")):
        grammar.commit(id_)
    assert grammar.masks((), 1) == rows[-1:]
    assert work.taken == ["a", "ab", "abc", "abcd", "abcde"]
    assert work.masks[5:] == ["abcde"]


def test_slow_position_after_rejected_candidate_is_no_failure(harness: GrammarHarness, work: Work) -> None:
    work.mask_seconds = lambda text: 9.0 if text == "c" else 0.0
    grammar = follow(harness, work, choice=["ab", "cd"])
    a, b, c, d = harness.encode("abcd")
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
def test_call_time_is_bounded(harness: GrammarHarness, work: Work, kind: str) -> None:
    if kind == "masks":
        work.mask_seconds = lambda text: 0.02
    else:
        work.take_seconds = lambda text: 0.02
    grammar = follow(harness, work, regex="a*")
    ids = harness.encode("a" * 100)
    if kind == "committed":
        for id_ in ids:
            grammar.commit(id_)
        grammar.masks((), 1)
        assert grammar.problem is not None
        return
    rows = grammar.masks(ids, len(ids) + 1)
    assert work.now < 0.6
    assert grammar.problem is None  # of the committed tokens
    failed = next(position for position, row in enumerate(rows) if row is not None and not any(row))
    assert set(rows[failed + 1 :]) == {None}
    for id_ in ids[:failed]:
        grammar.commit(id_)
    before = work.now
    assert grammar.masks(ids, len(ids) + 1) == [rows[failed], *[None] * len(ids)]
    assert work.now == before  # from the cache
    assert grammar.count_valid(ids) == 0
    assert "takes too long" in (grammar.problem or "")


def test_slow_committed_positions_are_bounded_per_answer(harness: GrammarHarness, work: Work) -> None:
    """Slow positions use up the answer's extra time. Only committed positions count."""
    work.mask_seconds = lambda text: 0.22 if len(text) % 10 == 9 else 0.02
    grammar = follow(harness, work, regex="[ab]*")
    a, b = harness.encode("ab")
    length = 0
    while length < 1000:
        (mask, *_) = grammar.masks([b], 2)
        assert mask is not None
        if not any(mask):
            break
        grammar.commit(a)
        length += 1
    assert length == 59  # the sixth slow position; the extra time allows five


def test_slow_positions_reduce_draft_tokens(harness: GrammarHarness, work: Work) -> None:
    work.mask_seconds = lambda text: 0.02
    grammar = follow(harness, work, regex="a*")
    ids = harness.encode("a" * 30)
    assert grammar.count_valid(ids) == 30
    grammar.masks((), 1)
    assert grammar.count_valid(ids) == 2


def test_parser_failure_is_not_retried(harness: GrammarHarness, work: Work) -> None:
    grammar = follow(harness, work, lark=AMBIGUOUS)
    (a,) = harness.encode("a")
    while any(grammar.masks([a], 2)[0] or b"") and len(work.taken) < 300:
        grammar.commit(a)
    assert "items" in (grammar.problem or "")
    assert work.num_opened == 0
    assert len(work.taken) == len({*work.taken})


def test_replay_after_full_lexer_is_bounded(
    harness: GrammarHarness, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grammar_worker.PARSER_LIMITS, "max_lexer_states", 60)
    work.take_seconds = lambda text: 0.02
    grammar = follow(harness, work, regex=".*[!-O].{20}x")
    ids = harness.encode("!?a!b?!z!!!?!?!????!?!aaa!" * 4)
    for id_ in ids:
        before = work.now
        (mask,) = grammar.masks((), 1)
        assert work.now - before < 0.6
        if not any(mask or b"1"):
            break
        grammar.commit(id_)
    assert "states" in (grammar.problem or "")


def test_ambiguous_grammar_fails_at_the_same_length(harness: GrammarHarness) -> None:
    """The limit is a function of the text: every answer stops at the same length."""
    (a,) = harness.encode("a")
    lengths = set()
    for window in (1, 7):
        grammar = harness.compile(lark=AMBIGUOUS)
        length = 0
        while any(grammar.masks([a] * window, window + 1)[0] or b"") and length < 300:
            grammar.commit(a)
            length += 1
        assert "items" in (grammar.problem or "")
        lengths.add(length)
    assert lengths == {100}
