"""The report of `bench paper`. It is written after every point, so an interrupted run keeps them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ThroughputPoint:
    """One share of deterministic requests, in per cent, in one mode. speed is output tok/s, of_off the
    ratio to the same requests with the guarantee off."""

    workload: str
    mode: str
    share: int
    speed: float
    of_off: float
    candidates: int
    rolled_back: int
    seconds: float


@dataclass
class LatencyPoint:
    """One arrival rate in one mode. first_token and between_tokens are seconds at the percentiles 0
    to 100; is_overloaded: requests were still waiting when the last one had arrived."""

    workload: str
    mode: str
    share: int
    rate: float
    num_requests: int
    first_token: list[float]
    between_tokens: list[float]
    between_p999: float
    is_overloaded: bool


@dataclass
class RollbackPoint:
    """Windows of at most so many candidates, so many requests at once, all deterministic. mean_window
    is measured; rolled_back_share is per output token."""

    window: int
    group: int
    plain_candidates: bool
    mean_window: float
    rolled_back_share: float
    rollbacks: int
    num_tokens: int
    speed: float


@dataclass
class PaperReport:
    machine: str
    torch: str
    triton: str | None
    settings: dict[str, Any]
    published: dict[str, Any]
    throughput: list[ThroughputPoint] = field(default_factory=list)
    off: dict[str, float] = field(default_factory=dict)  # tok/s with the guarantee off, by workload
    latency: list[LatencyPoint] = field(default_factory=list)
    rollbacks: list[RollbackPoint] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
