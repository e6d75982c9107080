"""The report of a load on a server: figures, and a list of problems."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.bench.serve.answers import PoolAnswers, compare_answers, count_modes, sum_stats
from holdfast.bench.serve.latency import ServeLatency, is_complete, truncate
from holdfast.bench.serve.load import LoadResult, LoadRun
from holdfast.bench.serve.monitor import (
    PAGES_USED,
    RESTARTS,
    RUNNING,
    WAITING,
    ServerObservation,
    at_share,
    is_flat,
)

ORDINARY, DETERMINISTIC = "ordinary", "deterministic"
MIN_OFFLINE_RATIO = 0.8
_TIMELINE_LEN = 60
_IDLE = (RUNNING, WAITING, PAGES_USED, RESTARTS)


@dataclass(frozen=True)
class ProcessReport:
    """Memory of the server's processes at 10 %, 50 % and 100 % of the run, file descriptors before
    and after it.
    """

    resident_bytes: dict[str, int]
    flat: bool | None
    fds_before: int
    fds_after: int
    cpu_seconds: float
    timeline: list[tuple[float, int]]  # seconds, bytes

    @classmethod
    def of(cls, observed: ServerObservation) -> "ProcessReport | None":
        """None where only the server's metrics could be read."""
        samples = observed.samples
        if not samples or observed.before is None or observed.after is None:
            return None
        shares = {"10 %": 0.1, "50 %": 0.5, "100 %": 1.0}
        return cls(
            {name: at_share(samples, share).resident_bytes for name, share in shares.items()},
            is_flat(samples, observed.idle),
            observed.before.num_fds,
            observed.after.num_fds,
            observed.cpu_seconds,
            [(one.seconds, one.resident_bytes) for one in samples[:: max(1, len(samples) // _TIMELINE_LEN)]],
        )


@dataclass
class ServeReport:
    """One load. Times are in seconds.

    tokens_per_second and requests_per_second count what came within `seconds`. CPU times are those
    of seconds_to_silence, which includes the time until the last stream ended. idle holds the
    server's metrics after the load.
    """

    machine: str
    model: str
    server: str
    load: str
    requests: str
    seconds: float
    seconds_to_silence: float
    num_requests: int
    num_left: int
    errors: dict[str, int]
    examples: dict[str, str]  # of errors, by kind
    tokens_per_second: float
    requests_per_second: float
    latency: dict[str, ServeLatency]
    client_cpu_seconds: float
    modes: dict[str, int]
    stats: dict[str, int]
    answers: list[PoolAnswers]
    idle: dict[str, float]
    timeline: list[tuple[float, float]]  # seconds, tokens per second
    processes: ProcessReport | None = None
    offline_tokens_per_second: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        ratio = self.offline_ratio
        return not self.problems and (ratio is None or ratio >= MIN_OFFLINE_RATIO)

    @property
    def client_cpu_share(self) -> float:
        """The share of one core."""
        return self.client_cpu_seconds / self.seconds_to_silence

    @property
    def offline_ratio(self) -> float | None:
        offline = self.offline_tokens_per_second
        return self.tokens_per_second / offline if offline else None


def make_report(
    run: LoadRun,
    alone: Sequence[LoadResult],
    *,
    machine: str,
    model: str,
    names: tuple[str, str, str],
    client_cpu_seconds: float,
    observed: ServerObservation,
) -> ServeReport:
    """Sum up a load.

    `alone` are the answers to the pool prompts before it; they are compared, but not counted.
    """
    results = run.results
    streams = [one.stream for one in results]
    kinds = {
        ORDINARY: [one.stream for one in results if not one.request.deterministic],
        DETERMINISTIC: [one.stream for one in results if one.request.deterministic],
    }
    in_time = [truncate(one, run.ended) for one in streams]
    failed = [one for one in streams if one.error is not None]
    report = ServeReport(
        machine,
        model,
        *names,
        seconds=run.seconds,
        seconds_to_silence=run.drained - run.started,
        num_requests=len(results),
        num_left=sum(one.disconnected for one in streams),
        errors=dict(Counter(one.error or "" for one in failed).most_common()),
        examples={one.error or "": one.detail for one in failed},
        tokens_per_second=sum(one.num_tokens for one in in_time) / run.seconds,
        requests_per_second=sum(map(is_complete, in_time)) / run.seconds,
        latency={kind: ServeLatency.of(those) for kind, those in kinds.items() if those},
        client_cpu_seconds=client_cpu_seconds,
        modes=count_modes(results),
        stats=sum_stats(results),
        answers=compare_answers([*alone, *results]),
        idle={name: observed.idle[name] for name in _IDLE if name in observed.idle},
        timeline=_timeline(run),
        processes=ProcessReport.of(observed),
    )
    report.problems = [
        f"before the load: {one.stream.error}: {one.stream.detail}" for one in alone if one.stream.error
    ]
    report.problems += find_problems(report)
    return report


def _timeline(run: LoadRun) -> list[tuple[float, float]]:
    """Tokens per second over time."""
    num_slots = max(1, min(_TIMELINE_LEN, int(run.seconds)))
    width = run.seconds / num_slots
    slots = [0.0] * num_slots
    for one in run.results:
        tokens = one.stream.num_tokens / max(1, len(one.stream.arrivals))
        for moment in one.stream.arrivals:
            slot = int((moment - run.started) / width)
            if slot < num_slots:
                slots[slot] += tokens
    return [((number + 0.5) * width, tokens / width) for number, tokens in enumerate(slots)]


def find_problems(report: ServeReport) -> list[str]:
    """Everything that is wrong, a sentence each."""
    problems = [f"{count} × {kind}: {report.examples[kind]}" for kind, count in report.errors.items()]
    if not any(latency.first_text.count for latency in report.latency.values()):
        problems.append("no answer arrived")
    for one in report.answers:
        if one.distinct > 1:
            problems.append(f"deterministic prompt {one.number} has {one.distinct} distinct answers")
        if one.astray:
            problems.append(f"deterministic prompt {one.number}: {one.astray} partial answers differ from it")
    if report.modes.get("none"):
        problems.append(f"{report.modes['none']} deterministic answers had no guarantee")
    for name, what in (
        (RUNNING, "requests still run"),
        (WAITING, "requests still wait"),
        (PAGES_USED, "pages are still held"),
    ):
        if report.idle.get(name):
            problems.append(f"after the load {report.idle[name]:.0f} {what}")
    if report.idle.get(RESTARTS):
        problems.append(f"the engine process was restarted {report.idle[RESTARTS]:.0f} times")
    processes = report.processes
    if processes is not None and processes.flat is False:
        problems.append("memory still grew in the second half of the run")
    if processes is not None and processes.fds_after > processes.fds_before:
        problems.append(f"{processes.fds_after - processes.fds_before} file descriptors were not closed")
    return problems
