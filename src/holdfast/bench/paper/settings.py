"""What `bench paper` runs: request lengths, and the points of each part.

Lengths are drawn from log-normal distributions. Their medians or means are published; the spread
(sigma, of the logarithm) is ours.

    sharegpt   conversations as in the vLLM paper (arXiv 2309.06180): mean 161 tokens in, 338 out
    arxiv      summaries as in Sarathi-Serve (arXiv 2403.02310): median 7,059 tokens in, 208 out
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.bench.tiny import TINY
from holdfast.bench.workloads import draw_lengths
from holdfast.errors import ConfigError

PARTS = ("throughput", "latency", "rollbacks")


@dataclass(frozen=True)
class Workload:
    """The lengths of requests, in tokens. sigma is that of the logarithm."""

    name: str
    prompt_median: float
    prompt_sigma: float
    output_median: float
    output_sigma: float
    max_prompt: int
    max_output: int

    def draw(self, rng: random.Random, count: int, divisor: int = 1) -> list[tuple[int, int]]:
        """So many lengths of a prompt and its answer."""
        prompts = draw_lengths(
            rng,
            count,
            self.prompt_median / divisor,
            self.prompt_sigma,
            4,
            max(4, self.max_prompt // divisor),
        )
        outputs = draw_lengths(
            rng,
            count,
            self.output_median / divisor,
            self.output_sigma,
            2,
            max(2, self.max_output // divisor),
        )
        return list(zip(prompts, outputs, strict=True))


def _median_of(mean: float, sigma: float) -> float:
    """The median of a log-normal distribution with this mean."""
    return mean / math.exp(sigma**2 / 2)


WORKLOADS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload("sharegpt", _median_of(161.31, 1.0), 1.0, _median_of(337.99, 0.9), 0.9, 2048, 1024),
        Workload("arxiv", 7059, 0.48, 208, 0.45, 24_000, 1024),
    )
}


@dataclass(frozen=True)
class PaperSettings:
    """num_requests are submitted at once for throughput, by workload. rates are requests per second,
    each for latency_seconds. windows are candidates at most, groups are requests that run at once.
    """

    model: str = "llama-3.1-8b"
    dtype: str = "bf16"
    max_streams: int = 256
    num_requests: Mapping[str, int] = field(default_factory=lambda: {"sharegpt": 96, "arxiv": 12})
    shares: tuple[int, ...] = (0, 2, 5, 10, 20, 50, 100)  # per cent
    rates: tuple[float, ...] = (4.0, 12.0)
    latency_seconds: float = 5.0
    windows: tuple[int, ...] = (4, 16, 62)
    groups: tuple[int, ...] = (1, 8)
    rollback_prompt_len: int = 512
    rollback_tokens: int = 256
    divisor: int = 1  # of all lengths
    num_positions: int = 300_000
    max_len: int = 26_000

    def scaled_len(self, length: int) -> int:
        return max(4, length // self.divisor)


def paper_settings(model: str | None) -> PaperSettings:
    """The settings for a named shape, or for the tiny model."""
    if model != TINY:
        return PaperSettings() if model is None else replace(PaperSettings(), model=model)
    return PaperSettings(
        model=TINY,
        dtype="fp32",
        max_streams=8,
        num_requests={"sharegpt": 4, "arxiv": 2},
        shares=(0, 50, 100),
        rates=(20.0,),
        latency_seconds=0.5,
        windows=(2, 8),
        groups=(1, 2),
        divisor=32,
        num_positions=8000,
        max_len=1000,
    )


def parse_parts(only: str | None) -> tuple[str, ...]:
    """Parse a list such as "throughput,latency", in the order of `PARTS`."""
    chosen = set(PARTS) if only is None else {name.strip() for name in only.split(",") if name.strip()}
    unknown = chosen - set(PARTS)
    if unknown or not chosen:
        raise ConfigError(
            f"no part {', '.join(sorted(unknown)) or 'was named'}; the parts are {', '.join(PARTS)}"
        )
    return tuple(name for name in PARTS if name in chosen)


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse a list of whole numbers such as "4,12"."""
    try:
        rates = tuple(float(int(one)) for one in text.split(","))
    except ValueError:
        rates = ()
    if not rates or min(rates) < 1:
        raise ConfigError(f"expected positive whole numbers such as 4,12, not {text!r}")
    return rates


def parse_shares(text: str) -> tuple[int, ...]:
    """Parse a list of percentages such as "0,10,100"."""
    try:
        shares = tuple(int(one) for one in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= one <= 100 for one in shares):
        raise ConfigError(f"expected whole percentages from 0 to 100 such as 0,10,100, not {text!r}")
    return shares
