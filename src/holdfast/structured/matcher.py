"""One answer's grammar over llguidance: which tokens may come behind the committed ones, and behind candidates.

The invariant: a mask is a function of the form and the tokens before it, whatever was tried in between and whoever else
uses the form. Two things of llguidance stand against that, and are the reason for what looks roundabout here:

- It remembers its last mask by a key that a rollback does not change, and may answer with the mask of a path that was
  taken back. So nothing is ever rolled back: candidates are tried on a copy, which is thrown away, or which becomes the
  answer's own matcher when all of them are committed.
- Copies share one lexer. It makes the second answer of a form fast, and it fails for all of them once one of them has
  filled it. So an answer whose lexer fails is followed once more from its beginning, with a lexer that has no past;
  only if that fails, too, has the form become too hard (`problem`). What the parser fails for is a function of the tokens.

Everybody waits for a mask. What keeps it short are llguidance's own limits, which are functions of the tokens
(`grammar_worker`), and that no place is computed twice (`grammar_findings`); the clocks here are the last resort.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.sandbox.grammar_worker import explain, is_of_lexer
from holdfast.structured.mask_cache import MaskCache
from holdfast.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MAX_CALL_SECONDS = 0.5  # CPU time for everything one call does
_PLACE_SECONDS = 0.025  # CPU time any place may take ...
_EXTRA_SECONDS = 1.0  # ... and what all committed places of an answer may take beyond that
_LOOK_AHEAD_SECONDS = 0.05  # no more guesses than can be tried in about so long
_MAX_RENEWAL_SECONDS = 0.1  # what takes longer to compile is not compiled again while others wait


class CompiledGrammar:
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
    """A matcher behind the answer's own and these tokens."""

    ids: list[int]
    matcher: "LLMatcher"


class MatcherGrammar:
    """A `core.grammar.Grammar`."""

    def __init__(self, form: CompiledGrammar, vocabulary: Vocabulary) -> None:
        self._form = form
        self._vocabulary = vocabulary
        self._nothing = bytes(-(-len(vocabulary.texts) // 32) * 4)
        self.restart()

    def restart(self) -> None:
        """Back to the beginning of the answer."""
        self._committed: list[int] = []
        self._matcher = self._form.begin()
        self._pending: list[int] = []  # committed, but not taken by the matcher yet
        self._branch: _Branch | None = None  # tried last; the next candidates often go on from there
        self._found = MaskCache()
        self._extra_seconds = _EXTRA_SECONDS
        self._pace = 0.0  # what the last place took

    def commit(self, token_id: int) -> None:
        """One more committed token. A matcher that cannot take it says so with the next mask."""
        self._committed.append(token_id)
        self._pending.append(token_id)
        seconds = self._found.commit(token_id)
        self._extra_seconds = max(0.0, self._extra_seconds - max(0.0, seconds - _PLACE_SECONDS))

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow one another behind the committed tokens; fewer, if they take long to try."""
        known = list(takewhile(self._vocabulary.may_follow, token_ids))
        if not known or self._has_ended or self._found.fails_at(0):
            return 0
        self._settle()
        if self._matcher.is_error():
            return 0
        if self._matcher.is_stopped():  # complete, and nothing but the end may follow
            return int(known[0] in self._vocabulary.eos_ids)
        most = len(known)
        if self._pace * most > _LOOK_AHEAD_SECONDS:
            most = int(_LOOK_AHEAD_SECONDS / self._pace)
        return self._matcher.validate_tokens(known[:most]) if most else 0

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        """Which tokens may come at the last num_masks places, as `core.grammar.Grammar` says."""
        if self._has_ended:
            return [None] * num_masks
        found = self._found
        found.turn_to(candidates)
        places = range(len(candidates) + 1 - num_masks, len(candidates) + 1)
        if any(not found.has(place) for place in places):
            self._find(list(candidates), places)
        return [self._nothing if found.fails_at(place) else found.masks.get(place) for place in places]

    @property
    def problem(self) -> str | None:
        """Why nothing may come behind the committed tokens, once a mask has shown it."""
        if not self._found.fails_at(0):
            return None
        return f"the answer's form cannot be followed any further: {self._found.failure}"

    @property
    def _has_ended(self) -> bool:
        return bool(self._committed) and self._committed[-1] in self._vocabulary.eos_ids

    def _find(self, candidates: list[int], places: range) -> None:
        """Find the masks of these places that are not known, or where the answer cannot be followed, and why."""
        deadline = time.thread_time() + _MAX_CALL_SECONDS
        self._settle()
        failed = self._try(candidates, places, deadline)
        for begin in (self._form.begin, self._form.begin_anew):  # another answer may have begun anew already
            if failed is None or not is_of_lexer(failed) or not self._follow_again(begin, deadline):
                break
            self._found.failure = None
            failed = self._try(candidates, places, deadline)

    def _settle(self) -> None:
        """Bring the matcher behind the committed tokens, by way of the branch if that is where it went."""
        branch, pending = self._branch, self._pending
        if branch is not None and pending:
            num_same = min(len(branch.ids), len(pending))
            if branch.ids[:num_same] != pending[:num_same]:
                self._branch = None
            elif num_same == len(branch.ids):
                self._matcher, self._branch = branch.matcher, None
                del pending[:num_same]
            else:
                del branch.ids[:num_same]
        for token_id in pending:
            self._matcher.consume_token(token_id)
        pending.clear()

    def _follow_again(self, begin: Callable[[], "LLMatcher"], deadline: float) -> bool:
        """Take the committed tokens from the beginning, if there is time for it."""
        matcher = begin()
        for token_id in self._committed:
            matcher.consume_token(token_id)
            if time.thread_time() > deadline:
                return False
        self._matcher, self._branch = matcher, None
        return True

    def _try(self, candidates: list[int], places: range, deadline: float) -> str | None:
        """Find masks along the candidates. Returns what the matcher says if it fails; being slow is no such failure."""
        found = self._found
        missing = next((place for place in places if not found.has(place)), places.stop)
        branch = self._branch
        if branch is None or len(branch.ids) > missing or branch.ids != candidates[: len(branch.ids)]:
            branch = _Branch([], self._matcher)
        started = time.thread_time()
        while True:
            place = len(branch.ids)
            if found.fails_at(place):
                self._branch = None
                return None
            if place > len(found.ids):
                found.ids = list(branch.ids)
            if place in places and place not in found.masks:
                found.masks[place] = branch.matcher.compute_bitmask()
            ended = time.thread_time()
            self._pace = found.seconds[place] = max(found.seconds.get(place, 0.0), ended - started)
            error = branch.matcher.get_error() if branch.matcher.is_error() else None
            is_slow = ended > deadline or self._pace - _PLACE_SECONDS > self._extra_seconds
            if error is not None or is_slow:
                self._fail(branch.ids, explain(error) if error is not None else "a step takes too long")
                return error
            if place == 0 and candidates:
                branch = _Branch([], branch.matcher.deep_copy())
            started = time.thread_time()
            if place == len(candidates) or not self._take(branch.matcher, candidates[place]):
                break
            branch.ids.append(candidates[place])
        self._branch = branch if branch.ids else None
        return None

    def _fail(self, ids: list[int], reason: str) -> None:
        """Behind these nothing may come, whatever was known of places behind that."""
        self._found.fail(ids, reason)
        self._branch = None

    def _take(self, matcher: "LLMatcher", token_id: int) -> bool:
        """Take one candidate, unless it is invalid or ends the answer. A matcher that breaks over it is left so."""
        if token_id in self._vocabulary.eos_ids or not self._vocabulary.may_follow(token_id):
            return False
        if matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not matcher.is_error():
            matcher.compute_bitmask()  # a lexer that gave up calls every token invalid, and shows it only here
        return matcher.is_error()
