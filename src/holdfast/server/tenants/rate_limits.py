"""Limits per minute, as token buckets. A bucket holds a minute's worth and fills at a constant rate.

A request is admitted while its tenant's bucket is not empty, and takes its tokens out as they become
known. So a bucket can be overdrawn, by what is admitted at once; the debt is paid back before the
next request is admitted, and no rate is exceeded in the long run.
"""

import math
import time
from collections.abc import Callable

Clock = Callable[[], float]
_MINUTE = 60.0
# Of each answer. The rest of a longer answer is charged while it is generated.
_MAX_RESERVED_TOKENS = 256


class TokenBucket:
    """Starts full."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._updated = clock()

    @property
    def level(self) -> float:
        """What can be taken now. Negative: debt."""
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._updated) * self.per_minute / _MINUTE)
        self._updated = now
        return self._level

    def take(self, num: float) -> None:
        """Take so many, or with a negative number give back. It may become overdrawn."""
        self._level = min(self.per_minute, self.level - num)

    def seconds_until(self, level: float = 1.0) -> int:
        """Whole seconds until it is filled to this level, if nothing more is taken."""
        missing = level - self.level
        return math.ceil(missing * _MINUTE / self.per_minute) if missing > 0 else 0

    def set_rate(self, per_minute: int) -> None:
        """Another limit from now on. A debt remains."""
        self._level = min(self.level, per_minute)
        self.per_minute = per_minute


class TokenMeter:
    """Charges one request's tokens, prompts and answers, to its tenant.

    The beginnings of the answers are reserved with the prompt, so that the time a refused client is
    told to wait covers requests that still run.
    """

    def __init__(self, bucket: TokenBucket | None = None) -> None:
        self._bucket = bucket
        self._num_prompt_tokens = 0
        self._num_reserved = 0
        self._num_generated = 0
        self._num_charged = 0

    def add_prompt(self, num_tokens: int, num_answers: int, max_tokens: int) -> None:
        """A prompt was sent to the engine, for answers of up to max_tokens tokens each."""
        self._num_prompt_tokens += num_tokens
        self._num_reserved += num_answers * min(max_tokens, _MAX_RESERVED_TOKENS)
        self._charge(self._num_prompt_tokens + max(self._num_reserved, self._num_generated))

    def add_generated(self, num_tokens: int) -> None:
        """Tokens of an answer arrived."""
        self._num_generated += num_tokens
        if self._num_generated > self._num_reserved:
            self._charge(self._num_prompt_tokens + self._num_generated)

    def close(self, *, was_accepted: bool) -> None:
        """The request ended. Give back what it did not use; everything, if the engine refused it."""
        self._charge(self._num_prompt_tokens + self._num_generated if was_accepted else 0)

    def _charge(self, total: int) -> None:
        if self._bucket is not None and total != self._num_charged:
            self._bucket.take(total - self._num_charged)
            self._num_charged = total
