"""What deterministic requests cost their neighbours: ordinary streams, measured with them and without, in turn.

As many streams in both, and in every second round a quarter of them is deterministic. Rounds alternate on one server and
swap their order, so that a machine that gets slower or faster favours neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from holdfast.bench.serve.answers import count_modes
from holdfast.bench.serve.bench import Target, look, reach
from holdfast.bench.serve.http_client import Heard
from holdfast.bench.serve.latency import Latency, Percentiles, cut
from holdfast.bench.serve.load import Load, Pace, Speaker, Spoken
from holdfast.bench.serve.workload import Jobs, Shape
from holdfast.errors import EngineStopped
from holdfast.scheduler.policy import DeterminismMode

JUDGED = ("first_text", "between_pieces")  # fields of `Latency`; their medians decide
WANTED: dict[DeterminismMode, float] = {"auto": 1.10, "verify": 1.25}
_WARM_UP_SECONDS = 5.0
_ENOUGH = 20  # requests of each kind of round


@dataclass(frozen=True)
class Rounds:
    """How long to measure: `pairs` times a round without deterministic streams and one with them."""

    num_streams: int = 8
    pairs: int = 4
    seconds: float = 20.0
    deterministic_share: float = 0.25

    @property
    def num_deterministic(self) -> int:
        return round(self.num_streams * self.deterministic_share)

    def order(self) -> list[bool]:
        """Which rounds have deterministic streams: without, with, with, without, and so on."""
        return [
            mixed
            for pair in range(self.pairs)
            for mixed in ((False, True) if pair % 2 == 0 else (True, False))
        ]


@dataclass(frozen=True)
class Finding:
    """One server: what its ordinary requests waited, with deterministic ones among them and without.

    modes counts how those were answered.
    """

    mode: DeterminismMode
    wanted: float
    without: Latency
    among: Latency
    modes: dict[str, int]

    def ratio(self, what: str, percent: str = "p50") -> float:
        """How many times as long ordinary requests waited among deterministic ones. what is a field of `Latency`."""
        among: Percentiles = getattr(self.among, what)
        without: Percentiles = getattr(self.without, what)
        now, before = float(getattr(among, percent)), float(getattr(without, percent))
        if before == 0.0:  # pieces that came together: their client was too slow to tell them apart
            return inf if now else 1.0
        return now / before

    @property
    def is_enough(self) -> bool:
        """Whether enough requests were measured for a median to mean something."""
        return min(self.without.first_text.count, self.among.first_text.count) >= _ENOUGH

    @property
    def is_good(self) -> bool:
        kept = all(self.ratio(what) <= self.wanted for what in JUDGED)
        return kept and self.is_enough and "none" not in self.modes


@dataclass(frozen=True)
class InterferenceReport:
    """All servers, on one machine."""

    machine: str
    model: str
    requests: str
    rounds: Rounds
    findings: list[Finding]

    @property
    def is_good(self) -> bool:
        return all(one.is_good for one in self.findings)


async def measure_interference(
    arguments: Sequence[str],
    modes: Sequence[DeterminismMode],
    shape: Shape,
    rounds: Rounds,
    api_key: str | None,
    tell: Callable[[str], None],
) -> InterferenceReport:
    """A server of our own in each mode, one after the other."""
    findings, model = [], ""
    for mode in modes:
        tell(f"{mode}: starting a server")
        async with reach(None, [*arguments, "--determinism", mode], api_key) as target:
            model, finding = await interfere(target, mode, shape, rounds, tell)
            findings.append(finding)
    from holdfast.bench.machine import (
        machine_name,  # imports torch, which a client that is measured does without
    )

    requests = f"{shape.prompt_tokens} + {shape.output_tokens} tokens"
    return InterferenceReport(machine_name(), model, requests, rounds, findings)


async def interfere(
    target: Target, mode: DeterminismMode, shape: Shape, rounds: Rounds, tell: Callable[[str], None]
) -> tuple[str, Finding]:
    """The model's name, and what all rounds on one server found.

    All prompts are new: a deterministic request must cost as much as the ordinary one it stands for.
    """
    shape = replace(shape, pool_len=0)
    waits: dict[bool, list[Heard]] = {False: [], True: []}
    deterministic: list[Spoken] = []
    async with target.client() as client:
        served = await look(client, shape)
        speaker = Speaker(client, served.model)

        async def play(number: int, mixed: bool, seconds: float) -> Load:
            kinds = [mixed and stream < rounds.num_deterministic for stream in range(rounds.num_streams)]
            pace = Pace(concurrency=rounds.num_streams, duration=seconds)
            load = await speaker.put(Jobs(shape, served.corpus_ids, number), pace, kinds)
            _require_answers(load)
            return load

        tell(f"{mode}: warming up")
        await play(-1, True, _WARM_UP_SECONDS)
        order = rounds.order()
        for number, mixed in enumerate(order):
            tell(
                f"{mode}: round {number + 1} of {len(order)}, {'among deterministic' if mixed else 'ordinary alone'}"
            )
            load = await play(number, mixed, rounds.seconds)
            waits[mixed] += [cut(one.heard, load.ended) for one in load.spoken if not one.job.deterministic]
            deterministic += [one for one in load.spoken if one.job.deterministic]
    without, among = Latency.of(waits[False]), Latency.of(waits[True])
    return served.model, Finding(mode, WANTED[mode], without, among, count_modes(deterministic))


def _require_answers(load: Load) -> None:
    for one in load.spoken:
        if one.heard.error is not None:
            raise EngineStopped(
                f"a request failed, so nothing was measured: {one.heard.error}: {one.heard.detail}"
            )
