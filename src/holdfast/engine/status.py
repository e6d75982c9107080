"""The engine's numbers: what it has done since it started, and what it holds now.

Plain data; it crosses processes as is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

ShowProgress = Callable[[str, int, int], None]  # (stage, done, total), while an engine starts


@dataclass(frozen=True)
class StartUpStage:
    """One stage of a start. `began` is on the clock of `time.monotonic`."""

    name: str
    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.monotonic)

    def next(self, name: str, done: int, total: int) -> "StartUpStage":
        return StartUpStage(name, done, total, *([self.began] if name == self.name else []))

    @property
    def seconds_left(self) -> float | None:
        """An estimate from what is done, None before anything is."""
        elapsed = time.monotonic() - self.began
        return round(elapsed / self.done * (self.total - self.done), 1) if self.done else None


# Bounds of tokens of a step, as vLLM counts them.
STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

CertificateStateName = Literal["none", "certifying", "certified", "refused", "failed", "revoked"]


@dataclass(frozen=True)
class CertificateState:
    """Where the certificate stands. While it is being made, checks_done of checks are done.

    none         determinism is off
    certifying   it is being made while requests are served; deterministic answers are verified
    certified    it is complete
    refused      the reference does not repeat its own bits; deterministic requests are refused
    failed       it could not be made; deterministic answers are verified
    revoked      a spot check found it wrong; deterministic answers are verified
    """

    state: CertificateStateName
    checks_done: int = 0
    checks: int = 0


@dataclass(slots=True)
class EngineCounters:
    """What an engine did since it started. They only grow."""

    num_steps: int = 0
    num_fast_passes: int = 0
    num_canonical_passes: int = 0
    num_certified_passes: int = 0  # canonical, of another shape than the reference
    num_shared_canonical_passes: int = 0  # with tokens of several requests
    num_padded_tokens: int = 0  # of all passes, padding included
    num_spot_checks: int = 0
    num_spot_checked_tokens: int = 0
    num_revocations: int = 0  # spot checks that found the certificate wrong
    num_tokens: int = 0  # of all passes, without padding
    steps_by_size: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))  # see `STEP_SIZES`


@dataclass(frozen=True)
class EngineStatus:
    """One moment of an engine.

    Idle pages are held only by the prefix cache, which frees them when a request needs them.
    """

    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages_idle: int
    num_pages: int
    counters: EngineCounters
