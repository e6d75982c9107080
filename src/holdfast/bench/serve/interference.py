"""What deterministic requests cost ordinary ones: latencies of ordinary streams with and without
deterministic ones.

The number of streams is always the same. In every second round a quarter of them is deterministic.
Rounds alternate on one server and swap their order, so that a machine that gets slower or faster
favours neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from holdfast.bench.percentiles import Percentiles
from holdfast.bench.serve.answers import count_modes
from holdfast.bench.serve.bench import TargetServer, connect_or_start, inspect_model
from holdfast.bench.serve.http_client import StreamResult
from holdfast.bench.serve.latency import ServeLatency, truncate
from holdfast.bench.serve.load import ArrivalConfig, LoadGenerator, LoadResult, LoadRun
from holdfast.bench.serve.workload import Workload, WorkloadConfig
from holdfast.errors import EngineStopped
from holdfast.scheduler.policy import DeterminismMode

JUDGED = ("first_text", "between_pieces")  # fields of `ServeLatency` whose medians have a limit
MAX_RATIO: dict[DeterminismMode, float] = {"auto": 1.10, "verify": 1.25}
_WARM_UP_SECONDS = 5.0
_MIN_REQUESTS = 20  # of each kind of round


@dataclass(frozen=True)
class InterferenceRounds:
    """The rounds: `pairs` times one without deterministic streams and one with them."""

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
class InterferenceFinding:
    """One server: the latencies of ordinary requests without deterministic ones and among them.

    modes counts how the deterministic requests were answered. wanted is the largest ratio that
    passes.
    """

    mode: DeterminismMode
    wanted: float
    without: ServeLatency
    among: ServeLatency
    modes: dict[str, int]

    def ratio(self, what: str, percent: str = "p50") -> float:
        """The latency among deterministic requests over that without.

        `what` is a field of `ServeLatency`.
        """
        among: Percentiles = getattr(self.among, what)
        without: Percentiles = getattr(self.without, what)
        now, before = float(getattr(among, percent)), float(getattr(without, percent))
        if before == 0.0:  # deltas arrived in one read of a slow client
            return inf if now else 1.0
        return now / before

    @property
    def is_enough(self) -> bool:
        """Whether there were enough requests for a median."""
        return min(self.without.first_text.count, self.among.first_text.count) >= _MIN_REQUESTS

    @property
    def is_good(self) -> bool:
        within = all(self.ratio(what) <= self.wanted for what in JUDGED)
        return within and self.is_enough and "none" not in self.modes


@dataclass(frozen=True)
class InterferenceReport:
    """All servers, on one machine."""

    machine: str
    model: str
    requests: str
    rounds: InterferenceRounds
    findings: list[InterferenceFinding]

    @property
    def is_good(self) -> bool:
        return all(one.is_good for one in self.findings)


async def measure_interference(
    arguments: Sequence[str],
    modes: Sequence[DeterminismMode],
    config: WorkloadConfig,
    rounds: InterferenceRounds,
    api_key: str | None,
    log: Callable[[str], None],
) -> InterferenceReport:
    """Measure one server per mode, one after the other."""
    findings, model = [], ""
    for mode in modes:
        log(f"{mode}: starting a server")
        async with connect_or_start(None, [*arguments, "--determinism", mode], api_key) as target:
            model, finding = await measure_server(target, mode, config, rounds, log)
            findings.append(finding)
    from holdfast.bench.machine import machine_name  # imports torch, which the measured client does not need

    requests = f"{config.prompt_tokens} + {config.output_tokens} tokens"
    return InterferenceReport(machine_name(), model, requests, rounds, findings)


async def measure_server(
    target: TargetServer,
    mode: DeterminismMode,
    config: WorkloadConfig,
    rounds: InterferenceRounds,
    log: Callable[[str], None],
) -> tuple[str, InterferenceFinding]:
    """Run all rounds on one server. Returns the model's name and the finding.

    There is no prompt pool: a deterministic request must cost as much as the ordinary one it
    replaces.
    """
    config = replace(config, pool_len=0)
    streams: dict[bool, list[StreamResult]] = {False: [], True: []}
    deterministic: list[LoadResult] = []
    async with target.client() as client:
        model = await inspect_model(client, config)
        generator = LoadGenerator(client, model.name)

        async def run_round(number: int, mixed: bool, seconds: float) -> LoadRun:
            kinds = [mixed and stream < rounds.num_deterministic for stream in range(rounds.num_streams)]
            arrivals = ArrivalConfig(concurrency=rounds.num_streams, duration=seconds)
            run = await generator.run(Workload(config, model.corpus_ids, number), arrivals, kinds)
            _require_success(run)
            return run

        log(f"{mode}: warming up")
        await run_round(-1, True, _WARM_UP_SECONDS)
        order = rounds.order()
        for number, mixed in enumerate(order):
            kind = "among deterministic" if mixed else "ordinary alone"
            log(f"{mode}: round {number + 1} of {len(order)}, {kind}")
            run = await run_round(number, mixed, rounds.seconds)
            streams[mixed] += [
                truncate(one.stream, run.ended) for one in run.results if not one.request.deterministic
            ]
            deterministic += [one for one in run.results if one.request.deterministic]
    without, among = ServeLatency.of(streams[False]), ServeLatency.of(streams[True])
    finding = InterferenceFinding(mode, MAX_RATIO[mode], without, among, count_modes(deterministic))
    return model.name, finding


def _require_success(run: LoadRun) -> None:
    for one in run.results:
        if one.stream.error is not None:
            raise EngineStopped(
                f"a request failed, so nothing was measured: {one.stream.error}: {one.stream.detail}"
            )
