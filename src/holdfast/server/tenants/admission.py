"""Decides which requests are let in: limits of the server, shares between tenants, limits of each.

Places are counted in answers: a request for n answers to each of k prompts takes n k of them.
max_running answers can be computed at once, and up to max_waiting more wait in the engine's queue.

    all places taken?   one tenant alone may take all of them. Others that come later are admitted
                        nevertheless up to their max-min fair share, and a tenant above its share is
                        refused until places are free. So the places in use can exceed the limit for a
                        while: N tenants hold at most 1 + 1/2 + ... + 1/N times as many.
    limits of a key     max_running (kept by the engine), max_waiting, tokens and requests per minute

A refusal says which limit it was, and after how many seconds to retry.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.core.shares import equal_level
from holdfast.errors import NotReady, TooBusy
from holdfast.server.errors import ApiError
from holdfast.server.tenants.tenant import UNKNOWN_TENANT, Tenant

_MAX_RETRY_SECONDS = 60  # of an estimate
Clock = Callable[[], float]
_MINUTE = 60.0
# Of each answer. The rest of a longer answer is charged while it is generated.
_MAX_RESERVED_TOKENS = 256


class TokenBucket:
    """A limit per minute: it holds a minute's worth, starts full, and fills at a constant rate.

    A request is admitted while its tenant's bucket is not empty, and takes its tokens out as they become
    known. So a bucket can be overdrawn, by what is admitted at once. The debt is paid back before the
    next request is admitted, and no rate is exceeded in the long run.
    """

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


class Admission:
    """The places of one model, and who holds them."""

    def __init__(
        self, max_waiting: int, clock: Clock = time.monotonic, rates: "RateLimits | None" = None
    ) -> None:
        self.max_running = 1
        self.is_open = True
        self.max_waiting = max_waiting
        self._held: Counter[str] = Counter()  # by the id of a tenant that holds any
        self._rates = rates or RateLimits(clock)
        self._mean_seconds = 1.0  # of a request; a moving average

    @property
    def capacity(self) -> int:
        return self.max_running + self.max_waiting

    @property
    def num_admitted(self) -> int:
        return self._held.total()

    def num_held(self, tenant: Tenant) -> int:
        return self._held[tenant.id]

    @contextmanager
    def admit(self, num_choices: int, tenant: Tenant = UNKNOWN_TENANT) -> Iterator[TokenMeter]:
        """Hold places for so many answers, or refuse them. Its tokens go to the meter."""
        self.require_open()
        self._require_places(num_choices, tenant)
        meter = self._rates.admit(tenant)
        self._held[tenant.id] += num_choices
        try:
            yield meter
        finally:
            self._held -= Counter({tenant.id: num_choices})

    def require_open(self) -> None:
        """Refuse every new request once the server shuts down."""
        if not self.is_open:
            raise NotReady("the server is going down", code="shutting_down")

    def observe(self, seconds: float) -> None:
        """A request took so long."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self, tenant: Tenant = UNKNOWN_TENANT) -> int:
        """Estimated seconds until the tenant gets a place: the time to answer those of its requests
        that wait, on its share of the engine."""
        num_tenants = len(self._held.keys() | {tenant.id})
        num_running = max(1, self.max_running // num_tenants)
        num_waiting = max(1, self.num_held(tenant) - num_running)
        return min(_MAX_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds * num_waiting / num_running)))

    def _require_places(self, num_choices: int, tenant: Tenant) -> None:
        limit = self._tenant_capacity(tenant)
        if num_choices > limit:
            raise ApiError(
                400,
                f"the request asks for {num_choices} answers at once; at most {limit} are possible",
                param="n",
                code="invalid_value",
            )
        held = self.num_held(tenant) + num_choices
        if held > limit and limit < self.capacity:
            message = f"too many requests of {tenant.name}: at most {limit} answers may run and wait at once"
            raise TooBusy(message, code="max_waiting_exceeded", retry_after=self.retry_after(tenant))
        others = [num for one, num in self._held.items() if one != tenant.id]
        if held > equal_level([*others, held], self.capacity):
            message = "too many requests wait already; ask again later"
            raise TooBusy(message, retry_after=self.retry_after(tenant))

    def _tenant_capacity(self, tenant: Tenant) -> int:
        """Return the places that one tenant may take if it is alone."""
        limits = tenant.limits
        num_running = self.max_running if limits.max_running is None else limits.max_running
        num_waiting = self.max_waiting if limits.max_waiting is None else limits.max_waiting
        return min(num_running, self.max_running) + min(num_waiting, self.max_waiting)


class RateLimits:
    """The buckets of tenants with limits per minute. The models of a server share them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], TokenBucket] = {}  # by what they limit, and the tenant's id

    def admit(self, tenant: Tenant) -> TokenMeter:
        limits = tenant.limits
        requests = self._bucket("requests", tenant, limits.requests_per_minute)
        tokens = self._bucket("tokens", tenant, limits.tokens_per_minute)
        for bucket, what in ((requests, "requests"), (tokens, "tokens")):
            if bucket is not None and (seconds := bucket.seconds_until(1)):
                message = f"{tenant.name} has used its {bucket.per_minute} {what} per minute"
                raise TooBusy(
                    f"{message}; ask again in {seconds} s",
                    code=f"{what}_per_minute_exceeded",
                    retry_after=seconds,
                )
        if requests is not None:
            requests.take(1)
        return TokenMeter(tokens)

    def _bucket(self, what: str, tenant: Tenant, per_minute: int | None) -> TokenBucket | None:
        key = what, tenant.id
        if per_minute is None:
            self._buckets.pop(key, None)
            return None
        bucket = self._buckets.setdefault(key, TokenBucket(per_minute, self._clock))
        if bucket.per_minute != per_minute:
            bucket.set_rate(per_minute)
        return bucket
