"""One answer's grammar over llguidance: which tokens may come after the committed ones, and after
candidates.

The invariant: a mask is a function of the grammar and the tokens before it, whatever was tried in
between and whatever other requests use the grammar. Two properties of llguidance work against that:

- It caches its last mask by a key that a rollback does not change, and may return the mask of a
  path that was rolled back. So a matcher is never rolled back: candidates are tried on a copy. The
  copy is dropped, or becomes the answer's own matcher when all of them are committed.
- Copies share one lexer. That makes the second answer of a grammar fast, but a lexer that one
  answer has filled fails for all of them. So an answer whose lexer fails is replayed from its first
  token with a fresh lexer. Only if that fails, too, has the answer become too hard for its grammar
  (`problem`). Failures of the parser are functions of the tokens.

The whole step waits for a mask. llguidance's own limits, which are functions of the tokens
(`grammar_worker`), keep it short, and no position is computed twice (`MaskCache`). The time limits
here are the last resort.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.sandbox.grammar_worker import explain, is_of_lexer
from holdfast.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MAX_CALL_SECONDS = 0.5  # CPU time for everything one call does
_POSITION_SECONDS = 0.025  # CPU time any position may take ...
_EXTRA_SECONDS = 1.0  # ... and what all committed positions of an answer may take beyond that
_DRAFT_SECONDS = 0.05  # time to validate draft tokens: bounds their number
_MAX_RECOMPILE_SECONDS = 0.1  # a grammar that takes longer is not compiled again while a step waits


class CompiledGrammar:
    """A compiled grammar, shared by any number of answers. `num_bytes` is an estimate."""

    def __init__(self, open_matcher: Callable[[], "LLMatcher"], num_bytes: int = 0) -> None:
        self.num_bytes = num_bytes
        self._open = open_matcher
        self._lock = threading.Lock()
        started = time.perf_counter()
        self._matcher = open_matcher()  # consumes no token: answers follow copies
        self._seconds = time.perf_counter() - started

    @property
    def fault(self) -> str | None:
        return explain(self._matcher.get_error()) if self._matcher.is_error() else None

    def begin(self) -> "LLMatcher":
        """Return a matcher before its first token. All of them share a lexer."""
        with self._lock:
            return self._matcher.deep_copy()

    def begin_fresh(self) -> "LLMatcher":
        """Return a matcher with a fresh lexer, if compiling is quick; later matchers share it."""
        with self._lock:
            if self._seconds <= _MAX_RECOMPILE_SECONDS:
                self._matcher = self._open()
            return self._matcher.deep_copy()


@dataclass(slots=True)
class _Branch:
    """A copy of the answer's matcher that has consumed these candidates."""

    ids: list[int]
    matcher: "LLMatcher"


class MatcherGrammar:
    """A `core.structured_output.Grammar`."""

    def __init__(self, compiled: CompiledGrammar, vocabulary: Vocabulary) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._empty_mask = bytes(-(-len(vocabulary.texts) // 32) * 4)
        self.restart()

    def restart(self) -> None:
        """Go back to the first token of the answer."""
        self._committed: list[int] = []
        self._matcher = self._compiled.begin()
        self._pending: list[int] = []  # committed, not yet consumed by the matcher
        self._branch: _Branch | None = None  # tried last; the next candidates often continue it
        self._cache = MaskCache()
        self._extra_seconds = _EXTRA_SECONDS
        self._last_seconds = 0.0  # what the last position took

    def commit(self, token_id: int) -> None:
        """Append one committed token. A matcher that cannot consume it fails at the next mask."""
        self._committed.append(token_id)
        self._pending.append(token_id)
        seconds = self._cache.commit(token_id)
        self._extra_seconds = max(0.0, self._extra_seconds - max(0.0, seconds - _POSITION_SECONDS))

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """Count how many of these are valid after the committed tokens. Return fewer if it takes long."""
        known = list(takewhile(self._vocabulary.is_known, token_ids))
        if not known or self._has_ended or self._cache.fails_at(0):
            return 0
        self._consume_pending()
        if self._matcher.is_error():
            return 0
        if self._matcher.is_stopped():  # complete: only an end-of-text token may follow
            return int(known[0] in self._vocabulary.eos_ids)
        num_tried = len(known)
        if self._last_seconds * num_tried > _DRAFT_SECONDS:
            num_tried = int(_DRAFT_SECONDS / self._last_seconds)
        return self._matcher.validate_tokens(known[:num_tried]) if num_tried else 0

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        """Return the masks of the last `num_masks` positions, as `core.structured_output.Grammar` defines."""
        if self._has_ended:
            return [None] * num_masks
        cache = self._cache
        cache.switch_to(candidates)
        positions = range(len(candidates) + 1 - num_masks, len(candidates) + 1)
        if any(not cache.has(position) for position in positions):
            self._compute(list(candidates), positions)
        return [
            self._empty_mask if cache.fails_at(position) else cache.masks.get(position)
            for position in positions
        ]

    @property
    def problem(self) -> str | None:
        """Why no token may follow the committed tokens, once a mask has shown it."""
        if not self._cache.fails_at(0):
            return None
        return f"the grammar of the structured output cannot be followed any further: {self._cache.failure}"

    @property
    def _has_ended(self) -> bool:
        return bool(self._committed) and self._committed[-1] in self._vocabulary.eos_ids

    def _compute(self, candidates: list[int], positions: range) -> None:
        """Compute the missing masks of these positions, or find the position where the grammar
        fails, and why."""
        deadline = time.thread_time() + _MAX_CALL_SECONDS
        self._consume_pending()
        error = self._try(candidates, positions, deadline)
        # First the shared lexer: another answer may have replaced it already. Then a fresh one.
        for begin in (self._compiled.begin, self._compiled.begin_fresh):
            if error is None or not is_of_lexer(error) or not self._replay(begin, deadline):
                break
            self._cache.failure = None
            error = self._try(candidates, positions, deadline)

    def _consume_pending(self) -> None:
        """Consume the pending tokens, or take over the branch's matcher if it has already."""
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

    def _replay(self, begin: Callable[[], "LLMatcher"], deadline: float) -> bool:
        """Consume the committed tokens again with a new matcher, if there is time."""
        matcher = begin()
        for token_id in self._committed:
            matcher.consume_token(token_id)
            if time.thread_time() > deadline:
                return False
        self._matcher, self._branch = matcher, None
        return True

    def _try(self, candidates: list[int], positions: range, deadline: float) -> str | None:
        """Compute masks along the candidates. Returns the matcher's error, if it has one; a time
        limit is none."""
        cache = self._cache
        missing = next((position for position in positions if not cache.has(position)), positions.stop)
        branch = self._branch
        if branch is None or len(branch.ids) > missing or branch.ids != candidates[: len(branch.ids)]:
            branch = _Branch([], self._matcher)
        started = time.thread_time()
        while True:
            position = len(branch.ids)
            if cache.fails_at(position):
                self._branch = None
                return None
            if position > len(cache.ids):
                cache.ids = list(branch.ids)
            if position in positions and position not in cache.masks:
                cache.masks[position] = branch.matcher.compute_bitmask()
            ended = time.thread_time()
            self._last_seconds = cache.seconds[position] = max(
                cache.seconds.get(position, 0.0), ended - started
            )
            error = branch.matcher.get_error() if branch.matcher.is_error() else None
            is_slow = ended > deadline or self._last_seconds - _POSITION_SECONDS > self._extra_seconds
            if error is not None or is_slow:
                self._fail(branch.ids, explain(error) if error is not None else "a step takes too long")
                return error
            if position == 0 and candidates:
                branch = _Branch([], branch.matcher.deep_copy())
            started = time.thread_time()
            if position == len(candidates) or not self._try_consume(branch.matcher, candidates[position]):
                break
            branch.ids.append(candidates[position])
        self._branch = branch if branch.ids else None
        return None

    def _fail(self, ids: list[int], reason: str) -> None:
        """Note that no token may come after these candidates. Entries after them are dropped."""
        self._cache.fail(ids, reason)
        self._branch = None

    def _try_consume(self, matcher: "LLMatcher", token_id: int) -> bool:
        """Consume one candidate, unless it is invalid or ends the answer. True, too, if the matcher
        fails over it."""
        if token_id in self._vocabulary.eos_ids or not self._vocabulary.is_known(token_id):
            return False
        if matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not matcher.is_error():
            matcher.compute_bitmask()  # a failed lexer rejects every token; only a mask shows the error
        return matcher.is_error()


@dataclass(slots=True)
class MaskCache:
    """The masks computed after an answer's committed tokens, along the candidates tried last.

    A mask is a function of the tokens before it, so it is computed once: each fast pass needs the mask
    after one candidate more, and the verification window finds all of them here.

        committed tokens | ids[0]   ids[1]   ids[2]
                         ^        ^        ^        ^
        position         0        1        2        3        masks[p]: what may come at position p

    Every entry belongs to the committed tokens followed by `ids`. Entries after a candidate that is not
    committed in the end are dropped, a failure and its time included. `seconds` are by position, too.
    `failure` says why nothing may come after `ids`.
    """

    ids: list[int] = field(default_factory=list)
    masks: dict[int, bytes] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # the time to consume the candidate included
    failure: str | None = None

    def commit(self, token_id: int) -> float:
        """Move past one more committed token. Returns the seconds its position took."""
        seconds = self.seconds.get(0, 0.0)
        if self.ids[:1] == [token_id]:
            self.ids.pop(0)
            self.masks = {position - 1: mask for position, mask in self.masks.items() if position}
            self.seconds = {position - 1: took for position, took in self.seconds.items() if position}
        else:
            self.ids, self.masks, self.seconds, self.failure = [], {}, {}, None
        return seconds

    def switch_to(self, candidates: Sequence[int]) -> None:
        """Drop the entries after the longest common prefix of `ids` and these candidates."""
        num_same = 0
        for known, other in zip(self.ids, candidates, strict=False):
            if known != other:
                break
            num_same += 1
        if num_same == min(len(self.ids), len(candidates)):
            return
        self.ids, self.failure = self.ids[:num_same], None
        self.masks = {position: mask for position, mask in self.masks.items() if position <= num_same}
        self.seconds = {position: took for position, took in self.seconds.items() if position <= num_same}

    def fail(self, ids: Sequence[int], reason: str) -> None:
        """Note that nothing may come after `ids`, a prefix of the current candidates."""
        end = len(ids)
        self.ids, self.failure = list(ids), reason
        self.masks = {position: mask for position, mask in self.masks.items() if position < end}
        self.seconds = {position: took for position, took in self.seconds.items() if position < end}

    def has(self, position: int) -> bool:
        """Return whether nothing is left to compute at this position."""
        return position in self.masks or (self.failure is not None and position >= len(self.ids))

    def fails_at(self, position: int) -> bool:
        return self.failure is not None and position == len(self.ids)
