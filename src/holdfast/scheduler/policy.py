"""Decisions of the scheduler as pure functions over plain values."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.core.step_plan import SAMPLED_RING_SIZE
from holdfast.errors import ConfigError
from holdfast.scheduler.extension import ModelExtension

DeterminismMode = Literal["auto", "verify", "off"]
Speculation = Literal["off", "ngram"]

DRAFT_HIT_RATE = 0.8  # n-grams that are right this often fill a window sooner than fast passes do
# Windows that are accepted this often are assumed to be accepted before their verdict is read. To wait
# for it costs about a tenth of a burst, a wrong assumption costs the request one burst.
MIN_ACCEPTANCE_RATE = 0.9
# In passes. After a longer burst a new request would wait too long.
MAX_OPTIMISTIC_BURST = 17
_MIN_DECODE_TO_DEFER, _MIN_TOKENS_SAVED = 64, 64
_LARGER = 1.25  # times the tokens; small passes take the time of reading the weights
_RATE_WINDOWS = 32  # windows over which the acceptance rate is averaged


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a schedule. None of them changes a bit of a deterministic answer.

    reference_tokens   the recipe's batch size
    certified_sizes    the batch sizes that the certificate covers, ascending
    spot_check_rate    the share of certified deterministic tokens that is computed again as a check
    async_scheduling   the next plan is made while one is in flight
    max_window         candidates of a verification window; None: as many as fit a reference pass
    new_extension      makes the extension of a request; None: the model has none
    num_states         recurrent states, more than max_num_seqs; 0: the model has none
    state_interval     positions between states that are kept for the prefix cache
    """

    max_num_seqs: int
    max_pass_tokens: int
    reference_tokens: int
    determinism: DeterminismMode = "auto"
    certified_sizes: tuple[int, ...] = ()
    prefix_cache: bool = True
    speculation: Speculation = "ngram"
    spot_check_rate: float = 0.0
    async_scheduling: bool = False
    max_window: int | None = None
    new_extension: ModelExtension | None = None
    num_states: int = 0
    state_interval: int = 256

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs must be at least 1, not {self.max_num_seqs}")
        least = 2 * self.reference_tokens
        if self.max_pass_tokens < least:
            raise ConfigError(
                f"max_pass_tokens must be at least {least} (two reference passes), not {self.max_pass_tokens}"
            )
        if self.max_pass_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_pass_tokens ({self.max_pass_tokens}) must be at least max_num_seqs ({self.max_num_seqs}), "
                "so that every running request gets a token in every pass"
            )
        assert self.new_extension is None or not self.async_scheduling, (
            "what an extension finds must be known before the next tokens are planned"
        )

    @property
    def longest_window(self) -> int:
        """Most candidates of a verification window: with the committed token they fit a reference pass."""
        fitting = self.reference_tokens - 1
        return fitting if self.max_window is None else min(self.max_window, fitting)

    @property
    def num_uncertain(self) -> int:
        """Most positions between the recurrent state that a pass starts from and its end: the window whose
        verdict is newest, the next one, and with async scheduling one that is not read yet."""
        return (1 + self.longest_window) * (3 if self.async_scheduling else 2)

    @property
    def one_pass_suffices(self) -> bool:
        """Return whether the largest size holds a token of every running request and a reference pass of prefill."""
        sizes = self.certified_sizes
        return bool(sizes) and sizes[-1] >= self.max_num_seqs + self.reference_tokens

    @property
    def commits_at_once(self) -> bool:
        """Return whether one certified pass holds everything: nothing waits for a verdict."""
        return self.determinism == "auto" and self.one_pass_suffices


@dataclass(frozen=True, slots=True)
class PendingWindow:
    """A deterministic request with candidates. num_tokens: of its window."""

    request_id: int
    num_tokens: int
    is_due: bool
    last_verified: int


def choose_burst(num_windows: int, reference_tokens: int, num_prefill: int = 0) -> int:
    """Return how many candidates each window gets before the next canonical pass, which also computes
    `num_prefill` tokens of prompts. If more tokens are committed in the same time without candidates,
    return 0: if the requests fill a reference pass alone, or a long prompt hides what they cost.

    The time of a pass of n tokens is about that of reference_tokens + n.
    """
    if not num_windows:
        return 1
    most = 1 if num_prefill else min(SAMPLED_RING_SIZE - 2, max(1, reference_tokens // num_windows - 1))

    def time_per_token(num_candidates: int) -> float:
        num_tokens = num_windows * (1 + num_candidates)
        time = num_candidates * (reference_tokens + num_windows)
        if num_prefill < reference_tokens:  # more would take the place of padding
            time += reference_tokens + round_up(num_tokens + num_prefill, reference_tokens) - num_prefill
        else:
            time += num_tokens
        return time / num_tokens

    return min((most, 0), key=time_per_token)


def adapt_window(window_cap: int, max_window: int, *, num_accepted: int, num_rejected: int) -> int:
    """Return the candidates of the next window: twice as many if all were accepted, else as many as were."""
    if num_rejected:
        return max(1, num_accepted)
    return min(max_window, max(window_cap, 2 * num_accepted))


def update_acceptance_rate(rate: float, *, accepted: bool) -> float:
    """Return the running share of windows that were accepted as a whole."""
    return rate + (accepted - rate) / _RATE_WINDOWS


def assume_accepted(acceptance_rate: float, num_passes: int) -> bool:
    """Return whether the next burst is planned before the verdict on this one is read."""
    return acceptance_rate >= MIN_ACCEPTANCE_RATE and num_passes <= MAX_OPTIMISTIC_BURST


def certified_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """Return the smallest certified size of at least `num_tokens`, or None. sizes: ascending."""
    at = bisect_left(sizes, num_tokens)
    return sizes[at] if at < len(sizes) else None


def larger_sizes(size: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the next certified sizes after this one, which cost little more."""
    at = bisect_right(sizes, size)
    return tuple(sizes[at : bisect_right(sizes, size * _LARGER)])


def prefill_to_defer(num_decode: int, num_prefill: int, sizes: Sequence[int]) -> int:
    """Return how many prefill tokens wait for the next pass, because this one is then padded less.

    The last prompt gets its first token one pass later. So this is done only for many tokens, and only
    while many requests decode: they share the gain.
    """
    size = certified_size(num_decode + num_prefill, sizes)
    at = bisect_left(sizes, num_decode + num_prefill)
    if num_decode < _MIN_DECODE_TO_DEFER or size is None or at == 0:
        return 0
    deferred = num_decode + num_prefill - sizes[at - 1]
    now, then = certified_size(num_decode, sizes), certified_size(num_decode + deferred, sizes)
    if deferred >= num_prefill or now is None or then is None:
        return 0
    saved = (size - sizes[at - 1]) - (then - now)
    return deferred if saved >= _MIN_TOKENS_SAVED else 0


def round_up(num_tokens: int, multiple: int) -> int:
    return -(-num_tokens // multiple) * multiple


def choose_due(pending: Sequence[PendingWindow], reference_tokens: int, budget: int) -> list[PendingWindow]:
    """Return the windows of the next canonical pass: those that are due. If all together fill reference
    passes, return as many as fill them. The request that was verified longest ago goes first."""
    ordered = sorted(
        pending,
        key=lambda window: (not window.is_due, window.last_verified, -window.num_tokens, window.request_id),
    )
    num_tokens = sum(window.num_tokens for window in pending)
    if num_tokens < reference_tokens:
        ordered = [window for window in ordered if window.is_due]
    elif not any(window.is_due for window in ordered):
        budget = min(budget, num_tokens // reference_tokens * reference_tokens)
    return _fill(ordered, budget)


def fill_spare(
    pending: Sequence[PendingWindow], chosen: Sequence[PendingWindow], num_spare: int
) -> list[PendingWindow]:
    """Return further windows in place of `num_spare` tokens of padding, the longest first."""
    chosen_ids = {window.request_id for window in chosen}
    rest = [window for window in pending if window.request_id not in chosen_ids]
    return _fill(sorted(rest, key=lambda window: (-window.num_tokens, window.request_id)), num_spare)


def _fill(ordered: Sequence[PendingWindow], budget: int) -> list[PendingWindow]:
    chosen = []
    for window in ordered:
        if window.num_tokens <= budget:
            chosen.append(window)
            budget -= window.num_tokens
    return chosen


def may_admit(num_needed: int, num_available: int, num_running: int) -> bool:
    """Return whether a request's pages are available, and one more for each running request."""
    return num_needed + num_running <= num_available


def is_sooner_shared(num_shared: int, num_forgone: int, cost: int) -> bool:
    """Return whether a request waits until another one has computed the `num_shared` tokens that both need.

    num_forgone: of these tokens, what requests that did not wait compute again. cost: of waiting, in
    tokens. All that wait for the other one lose a pass together, so no more tokens are computed again.
    """
    return num_forgone + num_shared >= cost
