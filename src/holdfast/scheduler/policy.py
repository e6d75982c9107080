"""Decisions of the scheduler as pure functions over plain values, so that each can be tested alone."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.core.step_plan import SAMPLED_RING_SIZE
from holdfast.errors import ConfigError
from holdfast.thinking.thought_log import MOST_GUESSES

DeterminismMode = Literal["auto", "verify", "off"]
Speculation = Literal["off", "ngram"]

WINDOW_CHANCE = 0.8  # a look-up right so often fills a window sooner than fast passes do
# Windows that stand so often are counted on before their verdict. To wait for it costs about a tenth of a burst, to have
# counted on one that falls a burst of its sequence.
TRUSTED = 0.9
SHORT_BURST = 17  # passes. Behind a longer one a newcomer would wait too long, and to wait for its verdict costs it little
_TRUST_MEMORY = 32  # windows


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits a schedule keeps to. None of them decides a bit of a deterministic answer.

    reference_tokens is the recipe's row count; certified_sizes are the row totals the certificate vouches for, and
    spot_check_rate the share of their deterministic rows that is computed again to see whether it is right. With
    async_scheduling the next plan is made while one is in flight.
    chunk_len is the length of a chunk in a model that thinks, 0 in a plain one; while_answering whether it thinks there, too.
    max_guesses is how many thoughts a pass may take for granted; 0: it reads one chunk.
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
    chunk_len: int = 0
    while_answering: bool = True
    max_guesses: int = MOST_GUESSES

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs must be at least 1, not {self.max_num_seqs}")
        if self.max_pass_tokens < 2 * self.reference_tokens:
            raise ConfigError(
                f"max_pass_tokens must be at least {2 * self.reference_tokens} (two reference passes), "
                f"not {self.max_pass_tokens}"
            )
        if self.max_pass_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_pass_tokens ({self.max_pass_tokens}) must be at least max_num_seqs ({self.max_num_seqs}), "
                "so that every running request gets a row in every pass"
            )
        assert not (self.chunk_len and self.async_scheduling), (
            "what is thought must be known before the next rows are planned"
        )

    @property
    def one_pass_suffices(self) -> bool:
        """Whether the largest certified total holds a row of every running request and some prompt beside them."""
        return (
            bool(self.certified_sizes)
            and self.certified_sizes[-1] >= self.max_num_seqs + self.reference_tokens
        )


@dataclass(frozen=True, slots=True)
class PendingWindow:
    """A deterministic sequence with candidates: how many rows its window has, and whether it wants its verdict now."""

    request_id: int
    num_tokens: int
    due: bool
    last_judged: int


def choose_burst(num_windows: int, reference_tokens: int) -> int:
    """How many candidates each of so many windows shall have, so that together they fill a reference pass."""
    if not num_windows:
        return 1
    return min(SAMPLED_RING_SIZE - 2, max(1, reference_tokens // num_windows - 1))


def adapt_trust(trust: float, *, stood: bool) -> float:
    """How often windows stood lately, one verdict later."""
    return trust + (stood - trust) / _TRUST_MEMORY


def counts_on_windows(trust: float, num_passes: int) -> bool:
    """Whether the next burst is begun behind one of so many passes before its verdict."""
    return trust >= TRUSTED and num_passes <= SHORT_BURST


def certified_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest certified total that holds this many rows; sizes are ascending."""
    at = bisect_left(sizes, num_tokens)
    return sizes[at] if at < len(sizes) else None


def round_up(num_tokens: int, multiple: int) -> int:
    return -(-num_tokens // multiple) * multiple


def choose_due(pending: Sequence[PendingWindow], reference_tokens: int, budget: int) -> list[PendingWindow]:
    """The windows a canonical pass must hold: those that are due; and once they fill reference passes, as many as fill them.

    Short windows are the cheapest: a window of n candidates commits n + 1 tokens for n fast rows. Whoever was judged longest
    ago goes first, so that nobody waits for ever when not all fit.
    """
    ordered = sorted(
        pending,
        key=lambda window: (not window.due, window.last_judged, -window.num_tokens, window.request_id),
    )
    total = sum(window.num_tokens for window in pending)
    if total < reference_tokens:
        ordered = [window for window in ordered if window.due]
    elif not any(window.due for window in ordered):
        budget = min(budget, total // reference_tokens * reference_tokens)
    return _fill(ordered, budget)


def fill_spare(
    pending: Sequence[PendingWindow], taken: Sequence[PendingWindow], spare: int
) -> list[PendingWindow]:
    """Further windows for rows that would otherwise be padding, the longest first."""
    chosen = {window.request_id for window in taken}
    rest = [window for window in pending if window.request_id not in chosen]
    return _fill(sorted(rest, key=lambda window: (-window.num_tokens, window.request_id)), spare)


def _fill(ordered: Sequence[PendingWindow], budget: int) -> list[PendingWindow]:
    chosen = []
    for window in ordered:
        if window.num_tokens <= budget:
            chosen.append(window)
            budget -= window.num_tokens
    return chosen


def may_admit(num_needed: int, num_available: int, num_running: int) -> bool:
    """Whether a request's pages are there, with one to spare for each running request that will want one soon."""
    return num_needed + num_running <= num_available
