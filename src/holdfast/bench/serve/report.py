"""What a load on a server came to: figures, and everything that was wrong with it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.bench.serve.answers import PoolAnswers, add_stats, compare_answers, count_modes
from holdfast.bench.serve.latency import Latency, cut, is_whole
from holdfast.bench.serve.load import Load, Spoken
from holdfast.bench.serve.monitor import PAGES_USED, RESTARTS, RUNNING, WAITING, Watched, at_share, is_flat

ORDINARY, DETERMINISTIC = "ordinary", "deterministic"
WANTED_OFFLINE_RATIO = 0.8
_TIMELINE_LEN = 60
_IDLE = (RUNNING, WAITING, PAGES_USED, RESTARTS)


@dataclass(frozen=True)
class Processes:
    """What the server's processes held at 10 %, 50 % and 100 % of the run, and handles before it and after it."""

    resident_bytes: dict[str, int]
    flat: bool | None
    fds_before: int
    fds_after: int
    cpu_seconds: float
    timeline: list[tuple[float, int]]  # seconds, bytes

    @classmethod
    def of(cls, watched: Watched) -> "Processes | None":
        """None where only the server's metrics could be read."""
        samples = watched.samples
        if not samples or watched.before is None or watched.after is None:
            return None
        shares = {"10 %": 0.1, "50 %": 0.5, "100 %": 1.0}
        return cls(
            {name: at_share(samples, share).resident_bytes for name, share in shares.items()},
            is_flat(samples, watched.idle),
            watched.before.num_fds,
            watched.after.num_fds,
            watched.cpu_seconds,
            [(one.seconds, one.resident_bytes) for one in samples[:: max(1, len(samples) // _TIMELINE_LEN)]],
        )


@dataclass
class Report:
    """One load. Times are seconds; tokens and requests a second are those of `seconds`. CPU times are of seconds_to_silence,
    in which whoever was still listening heard the end.

    idle holds the server's metrics after the load; problems is empty if all was well.
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
    latency: dict[str, Latency]
    client_cpu_seconds: float
    modes: dict[str, int]
    stats: dict[str, int]
    answers: list[PoolAnswers]
    idle: dict[str, float]
    timeline: list[tuple[float, float]]  # seconds, tokens a second
    processes: Processes | None = None
    offline_tokens_per_second: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        ratio = self.offline_ratio
        return not self.problems and (ratio is None or ratio >= WANTED_OFFLINE_RATIO)

    @property
    def client_cpu_share(self) -> float:
        """Of one core."""
        return self.client_cpu_seconds / self.seconds_to_silence

    @property
    def offline_ratio(self) -> float | None:
        offline = self.offline_tokens_per_second
        return self.tokens_per_second / offline if offline else None


def sum_up(
    load: Load,
    alone: Sequence[Spoken],
    *,
    machine: str,
    model: str,
    names: tuple[str, str, str],
    client_cpu_seconds: float,
    watched: Watched,
) -> Report:
    """The report of a load. `alone` are the pool's answers while nobody else was there: answers, but no load."""
    spoken = load.spoken
    heard = [one.heard for one in spoken]
    kinds = {
        ORDINARY: [one.heard for one in spoken if not one.job.deterministic],
        DETERMINISTIC: [one.heard for one in spoken if one.job.deterministic],
    }
    in_time = [cut(one, load.ended) for one in heard]
    failed = [one for one in heard if one.error is not None]
    report = Report(
        machine,
        model,
        *names,
        seconds=load.seconds,
        seconds_to_silence=load.silent - load.started,
        num_requests=len(spoken),
        num_left=sum(one.left for one in heard),
        errors=dict(Counter(one.error or "" for one in failed).most_common()),
        examples={one.error or "": one.detail for one in failed},
        tokens_per_second=sum(one.num_tokens for one in in_time) / load.seconds,
        requests_per_second=sum(map(is_whole, in_time)) / load.seconds,
        latency={kind: Latency.of(those) for kind, those in kinds.items() if those},
        client_cpu_seconds=client_cpu_seconds,
        modes=count_modes(spoken),
        stats=add_stats(spoken),
        answers=compare_answers([*alone, *spoken]),
        idle={name: watched.idle[name] for name in _IDLE if name in watched.idle},
        timeline=_timeline(load),
        processes=Processes.of(watched),
    )
    report.problems = [
        f"before the load: {one.heard.error}: {one.heard.detail}" for one in alone if one.heard.error
    ]
    report.problems += find_problems(report)
    return report


def _timeline(load: Load) -> list[tuple[float, float]]:
    """Tokens a second, over time."""
    num_slots = max(1, min(_TIMELINE_LEN, int(load.seconds)))
    width = load.seconds / num_slots
    slots = [0.0] * num_slots
    for one in load.spoken:
        tokens = one.heard.num_tokens / max(1, len(one.heard.arrivals))
        for moment in one.heard.arrivals:
            slot = int((moment - load.started) / width)
            if slot < num_slots:
                slots[slot] += tokens
    return [((number + 0.5) * width, tokens / width) for number, tokens in enumerate(slots)]


def find_problems(report: Report) -> list[str]:
    """Everything that must not be, a sentence each."""
    problems = [f"{count} × {kind}: {report.examples[kind]}" for kind, count in report.errors.items()]
    if not any(latency.first_text.count for latency in report.latency.values()):
        problems.append("no answer came")
    for one in report.answers:
        if one.distinct > 1:
            problems.append(f"deterministic prompt {one.number} has {one.distinct} distinct answers")
        if one.astray:
            problems.append(f"deterministic prompt {one.number}: {one.astray} answers begin otherwise")
    if report.modes.get("none"):
        problems.append(f"{report.modes['none']} deterministic answers came without the guarantee")
    for name, what in ((RUNNING, "still run"), (WAITING, "still wait"), (PAGES_USED, "pages are still held")):
        if report.idle.get(name):
            problems.append(f"after the load {report.idle[name]:.0f} {what}")
    if report.idle.get(RESTARTS):
        problems.append(f"the engine process was lost {report.idle[RESTARTS]:.0f} times")
    processes = report.processes
    if processes is not None and processes.flat is False:
        problems.append("memory still grew in the second half of the run")
    if processes is not None and processes.fds_after > processes.fds_before:
        problems.append(f"{processes.fds_after - processes.fds_before} handles were not given back")
    return problems


def save(report: Any, path: Path) -> None:
    """Any report of this floor, as JSON."""
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")
