"""The figures of `holdfast bench frontend`."""

from dataclasses import dataclass, field

from holdfast.bench.frontend.load_process import LoadFigures, StreamLoad
from holdfast.bench.percentiles import Percentiles


@dataclass
class FrontendCell:
    """One number of streams. Latencies are in seconds.

    cpu_us_per_token are microseconds of CPU by process: frontend, engine, client. cpu_shares are of one
    core. A frontend whose share is below 1 waited: for the engine, or for a core.
    """

    num_streams: int
    num_tokens: int  # of an answer, on average
    tokens_per_second: float
    requests_per_second: float
    first_token: Percentiles
    total: Percentiles
    cpu_us_per_token: dict[str, float]
    cpu_us_per_request: dict[str, float]
    cpu_shares: dict[str, float]
    tokens_per_read: float
    errors: list[str]

    @classmethod
    def of(cls, load: StreamLoad, figures: LoadFigures) -> "FrontendCell":
        spent, seconds = figures.cpu_seconds, figures.seconds
        per_token = 1e6 / max(1, figures.num_tokens)
        per_request = 1e6 / max(1, figures.num_requests)
        return cls(
            load.num_streams,
            load.num_tokens,
            figures.num_tokens / seconds,
            figures.num_requests / seconds,
            Percentiles.of(figures.first_token),
            Percentiles.of(figures.total),
            {name: one * per_token for name, one in spent.items()},
            {name: one * per_request for name, one in spent.items()},
            {name: one / seconds for name, one in spent.items()},
            figures.num_tokens / max(1, figures.num_reads),
            figures.errors,
        )


@dataclass
class FrontendReport:
    """All figures of one server. step and token are the engine's times, in seconds.

    request_us and token_us are the CPU time of the frontend: of a request with one token, and of each
    further token of the largest load. profile has the shares of the frontend's samples by function.
    """

    machine: str
    server: str
    step: float
    token: float
    replicas: int = 0  # 0: one engine process, without Ray
    cells: list[FrontendCell] = field(default_factory=list)
    request_us: float | None = None
    token_us: float | None = None
    profile: list[tuple[str, float]] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return bool(self.cells) and not any(one.errors for one in self.cells)

    @property
    def tokens_per_core(self) -> float | None:
        """Tokens per second of answers that have a length of their own, if one core does nothing else."""
        if self.request_us is None or self.token_us is None:
            return None
        num_tokens = self.cells[-1].num_tokens
        return 1e6 * num_tokens / (self.request_us + self.token_us * (num_tokens - 1))
