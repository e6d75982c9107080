"""One answer's grammar over llguidance: which tokens may come behind the committed ones, and behind candidates.

The invariant: a mask is a function of the form and the tokens before it, whatever was tried in between and whoever else
uses the form. Two things of llguidance stand against that, and are the reason for what looks roundabout here:

- It remembers its last mask by a key that a rollback does not change, and may answer with the mask of a path that was
  taken back. So nothing is ever rolled back: candidates are tried on a copy, which is thrown away.
- Copies share one lexer. It makes the second answer of a form fast, and it fails for all of them once one of them has
  filled it. So an answer whose matcher fails is followed once more from its beginning, with a lexer that has no past;
  only if that fails, too, has the form become too hard (`problem`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.engine.grammar_vocabulary import Vocabulary
from holdfast.engine.grammar_worker import explain

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MAX_STEP_SECONDS = 0.5  # CPU time for one mask; everybody waits for it
_MAX_RENEWAL_SECONDS = 0.1  # what takes longer to compile is not compiled again while others wait


class CompiledForm:
    """A form ready to be followed, by any number of answers. `num_bytes` is about what it takes."""

    def __init__(self, open_matcher: Callable[[], "LLMatcher"], num_bytes: int = 0) -> None:
        self.num_bytes = num_bytes
        self._open = open_matcher
        self._lock = threading.Lock()
        started = time.perf_counter()
        self._matcher = open_matcher()  # stays at the beginning: what is followed are copies
        self._seconds = time.perf_counter() - started

    @property
    def fault(self) -> str | None:
        return explain(self._matcher.get_error()) if self._matcher.is_error() else None

    def begin(self) -> "LLMatcher":
        """A matcher at the beginning. All of them share a lexer."""
        with self._lock:
            return self._matcher.deep_copy()

    def begin_anew(self) -> "LLMatcher":
        """A matcher with a lexer that has no past, if one can be had in time; the next ones share that."""
        with self._lock:
            if self._seconds <= _MAX_RENEWAL_SECONDS:
                self._matcher = self._open()
            return self._matcher.deep_copy()


@dataclass(slots=True)
class _Branch:
    """A matcher behind the committed tokens and these candidates."""

    ids: list[int]
    matcher: "LLMatcher"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Where an answer could not be followed, as tokens behind the committed ones, and why."""

    behind: tuple[int, ...]
    reason: str
    is_broken: bool  # the matcher is in error; a slow one is not


class MatcherGrammar:
    """A `core.grammar.Grammar`."""

    def __init__(self, form: CompiledForm, vocabulary: Vocabulary) -> None:
        self._form = form
        self._vocabulary = vocabulary
        self._nothing = bytes(-(-len(vocabulary.texts) // 32) * 4)
        self._committed: list[int] = []
        self._matcher = form.begin()
        self._branch: _Branch | None = None  # tried last; the next candidates often go on from there
        self._problem: tuple[list[int], str] | None = None  # where, and what
        self._is_slow = False

    def commit(self, token_id: int) -> None:
        """One more committed token. A matcher that cannot take it says so with the next mask."""
        if not self._has_ended:
            self._matcher.consume_token(token_id)
        self._committed.append(token_id)
        branch = self._branch
        if branch is not None and (branch.ids.pop(0) != token_id or not branch.ids):
            self._branch = None

    def restart(self) -> None:
        """Back to the beginning of the answer."""
        self._committed.clear()
        self._matcher, self._branch = self._form.begin(), None

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow one another behind the committed tokens."""
        known = list(takewhile(self._vocabulary.may_follow, token_ids))
        if not known or self._has_ended or self._matcher.is_error():
            return 0
        if self._matcher.is_stopped():  # complete, and nothing but the end may follow
            return int(known[0] in self._vocabulary.eos_ids)
        return self._matcher.validate_tokens(known)

    def masks(self, candidates: Sequence[int], num_rows: int) -> list[bytes | None]:
        """Which tokens may come at the last num_rows places, as `core.grammar.Grammar` says."""
        if self._has_ended:
            return [None] * num_rows
        rows, failure = self._try(candidates, num_rows)
        for begin in (self._form.begin, self._form.begin_anew):  # another answer may have begun anew already
            if failure is None or not failure.is_broken:
                break
            self._matcher, self._branch = begin(), None
            for token_id in self._committed:
                self._matcher.consume_token(token_id)
            rows, failure = self._try(candidates, num_rows)
        if failure is not None:
            self._problem = ([*self._committed, *failure.behind], failure.reason)
        return rows

    @property
    def problem(self) -> str | None:
        """Why nothing may come behind the committed tokens, once a mask has shown it."""
        if self._problem is None or self._problem[0] != self._committed:
            return None
        return f"the answer's form cannot be followed any further: {self._problem[1]}"

    @property
    def _has_ended(self) -> bool:
        return bool(self._committed) and self._committed[-1] in self._vocabulary.eos_ids

    def _try(self, candidates: Sequence[int], num_rows: int) -> tuple[list[bytes | None], _Failure | None]:
        """The masks, and why one of them allows nothing, if one does."""
        first = len(candidates) + 1 - num_rows
        branch = self._find_branch(candidates, first)
        rows: list[bytes | None] = []
        while True:
            place = len(branch.ids)
            mask, reason = self._ask(branch.matcher, place >= first)
            if place >= first:
                rows.append(mask)
            if reason is not None:
                self._branch = None
                failure = _Failure(tuple(branch.ids), reason, branch.matcher.is_error())
                return rows + [None] * (num_rows - len(rows)), failure
            if place == 0 and candidates:
                branch = _Branch([], branch.matcher.deep_copy())
            if place == len(candidates) or not self._follow(branch.matcher, candidates[place]):
                break
            branch.ids.append(candidates[place])
        self._branch = branch if branch.ids else None
        return rows + [None] * (num_rows - len(rows)), None

    def _find_branch(self, candidates: Sequence[int], first: int) -> _Branch:
        """Where to begin: at the candidates tried last, if these go on from there and no place before is asked for."""
        branch = self._branch
        if branch is None or len(branch.ids) > first or branch.ids != list(candidates[: len(branch.ids)]):
            return _Branch([], self._matcher)
        return branch

    def _follow(self, matcher: "LLMatcher", token_id: int) -> bool:
        """Take one candidate, unless it is invalid or ends the answer. A matcher that breaks over it is left so."""
        if token_id in self._vocabulary.eos_ids or not self._vocabulary.may_follow(token_id):
            return False
        if matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not matcher.is_error():
            matcher.compute_bitmask()  # a lexer that gave up calls every token invalid, and shows it only here
        return matcher.is_error()

    def _ask(self, matcher: "LLMatcher", is_wanted: bool) -> tuple[bytes | None, str | None]:
        """The mask here, if it is wanted, and why it allows nothing, if so."""
        started = time.thread_time()
        mask = matcher.compute_bitmask() if is_wanted else None
        if time.thread_time() - started > _MAX_STEP_SECONDS:
            self._is_slow = True
        if matcher.is_error():
            return self._nothing, explain(matcher.get_error())
        if self._is_slow:
            return self._nothing, f"a step took more than {_MAX_STEP_SECONDS:g} s"
        return mask, None
