"""A load on a fake server: every request is sent and counted, and every problem is found."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from holdfast.bench.percentiles import Percentiles
from holdfast.bench.serve.bench import TargetServer, inspect_model, measure
from holdfast.bench.serve.http_connection import Address
from holdfast.bench.serve.interference import InterferenceFinding, InterferenceRounds, measure_server
from holdfast.bench.serve.latency import ServeLatency
from holdfast.bench.serve.load import ArrivalConfig
from holdfast.bench.serve.monitor import PAGES_USED, RUNNING, WAITING
from holdfast.bench.serve.offline import OfflineLoad
from holdfast.bench.serve.server_process import free_port, start_server
from holdfast.bench.serve.workload import TokenRange, Workload, WorkloadConfig
from holdfast.bench.tiny import tiny_engine
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from support.fake_server import FakeServer, repeatable_deltas

CONFIG = WorkloadConfig(
    TokenRange(4, 8), TokenRange(3, 9), deterministic_share=0.4, disconnect_share=0.2, pool_len=2
)
ARRIVALS = ArrivalConfig(concurrency=5, num_requests=60)


@pytest.fixture
def server():
    with FakeServer(metrics={RUNNING: 0, WAITING: 0, PAGES_USED: 0}) as running:
        yield running


def load(server, config=CONFIG, arrivals=ARRIVALS, **settings):
    target = TargetServer("fake", Address.parse(server.url), **settings)
    report, _ = asyncio.run(measure(target, config, arrivals, lambda _: None))
    return report


def test_closed_loop_sends_all_requests(server):
    report = load(server)
    assert report.problems == [] and report.is_good
    assert report.num_requests == 60
    assert len(server.completions()) == 60 + CONFIG.pool_len  # first the pool prompts alone
    assert 0 < report.num_left < 30
    assert report.tokens_per_second > 0
    assert (
        report.latency["ordinary"].first_text.count + report.latency["deterministic"].first_text.count <= 60
    )
    assert [one.distinct for one in report.answers] == [1, 1]
    assert sum(one.asked for one in report.answers) == CONFIG.pool_len + count_deterministic(server)
    assert report.modes.keys() == {"certified"}
    assert report.stats["rolled_back"] == report.modes["certified"]


def count_deterministic(server):
    return sum("deterministic" in one.body for one in server.completions()[CONFIG.pool_len :])


def test_concurrency_limits_the_connections(server):
    load(server, replace(CONFIG, disconnect_share=0.0), ArrivalConfig(concurrency=3, num_requests=30))
    assert server.num_connections <= 4


def test_load_ends_after_its_duration(server):
    report = load(server, arrivals=ArrivalConfig(concurrency=2, duration=0.3))
    assert report.seconds == pytest.approx(0.3)
    assert report.num_requests > 2
    assert report.is_good


def test_poisson_load(server):
    report = load(server, arrivals=ArrivalConfig(rate=400.0, num_requests=40))
    assert report.num_requests == 40
    assert report.is_good


def test_same_seed_sends_the_same_requests(server):
    arrivals = ArrivalConfig(concurrency=1, num_requests=20)
    load(server, arrivals=arrivals)
    first = [one.body for one in server.completions()]
    server.received.clear()
    load(server, arrivals=arrivals)
    assert [one.body for one in server.completions()] == first


def test_two_answers_to_a_deterministic_prompt_are_a_problem(server):
    numbers = itertools.count()

    def changing(body):
        deltas = repeatable_deltas(body)
        return [*deltas[:-1], "other"] if body.get("deterministic") and next(numbers) == 7 else deltas

    server.deltas = changing
    report = load(server, replace(CONFIG, disconnect_share=0.0))
    assert len(report.problems) == 1
    assert "has 2 distinct answers" in report.problems[0]


def test_different_ordinary_answers_are_no_problem(server):
    numbers = itertools.count()
    server.deltas = lambda body: (
        repeatable_deltas(body) if body.get("deterministic") else [f"{next(numbers)}"]
    )
    assert load(server).is_good


def test_errors_are_counted_by_kind(server):
    server.break_after = 2
    report = load(server, replace(CONFIG, disconnect_share=0.0))
    assert report.errors == {"broken stream": 60}
    assert not report.is_good
    server.break_after, server.status = None, 429
    assert load(server, replace(CONFIG, disconnect_share=0.0)).errors == {"status 429": 60}


def test_leaked_page_is_a_problem(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.monitor._IDLE_SECONDS", 0.1)
    server.metrics[PAGES_USED] = 2
    assert load(server).problems == ["after the load 2 pages are still held"]


def test_server_without_metrics_is_measured(server):
    server.metrics = {}
    report = load(server)
    assert report.is_good and report.idle == {}


def test_server_with_an_api_key(server):
    server.api_key = "secret"
    with pytest.raises(ConfigError, match="401"):
        load(server)
    assert load(server, api_key="secret").is_good


def test_prompt_longer_than_the_context_is_refused(server):
    with pytest.raises(ConfigError, match="context of the model 2048"):
        load(server, replace(CONFIG, prompt_tokens=TokenRange(2000, 2100)))
    assert server.completions() == []


def test_unknown_server_is_refused(server):
    async def run():
        target = TargetServer("fake", Address.parse(f"{server.url}/else"))
        async with target.client() as client:
            await inspect_model(client, CONFIG)

    with pytest.raises(ConfigError, match="cannot be measured"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 3},
        {"num_requests": 3},
        {"concurrency": 3, "rate": 1.0, "duration": 1.0},
        {"concurrency": 3, "duration": 1.0, "num_requests": 3},
        {"rate": 0.0, "duration": 1.0},
        {"concurrency": 3, "duration": float("nan")},
    ],
)
def test_invalid_arrivals_are_refused(wrong):
    with pytest.raises(ConfigError):
        ArrivalConfig(**wrong)


def test_rounds_alternate_and_swap_order():
    assert InterferenceRounds(pairs=3).order() == [False, True, True, False, False, True]
    assert InterferenceRounds(8).num_deterministic == 2


def test_interference_measures_ordinary_requests_only(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.interference._WARM_UP_SECONDS", 0.05)
    config = replace(CONFIG, disconnect_share=0.0)
    target = TargetServer("fake", Address.parse(server.url))
    rounds = InterferenceRounds(num_streams=4, pairs=2, seconds=0.2)
    model, finding = asyncio.run(measure_server(target, "verify", config, rounds, lambda _: None))
    assert (model, finding.wanted) == ("fake", 1.25)
    deterministic = [bool(one.body.get("deterministic")) for one in server.completions()]
    assert 0 < finding.modes["certified"] < sum(deterministic)  # without those of the warm-up
    prompts = [tuple(one.body["prompt"]) for one in server.completions()]
    assert len(set(prompts)) > 0.9 * len(prompts)  # no pool; two may still be equal by chance
    ordinary = finding.without.end_to_end.count + finding.among.end_to_end.count
    assert 0 < ordinary < len(deterministic) - sum(deterministic)


def test_failed_request_aborts_interference(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.interference._WARM_UP_SECONDS", 0.05)
    server.status = 500
    target = TargetServer("fake", Address.parse(server.url))
    with pytest.raises(EngineStopped, match="nothing was measured"):
        asyncio.run(measure_server(target, "auto", CONFIG, InterferenceRounds(4, 1, 0.1), lambda _: None))


def latencies(first, between, count=20):
    def of(value):
        return Percentiles(count, value, value, value)

    return ServeLatency(of(first), of(between), of(1.0), of(1.0))


@pytest.mark.parametrize(
    ("first", "between", "mode", "good"),
    [
        (1.09, 1.0, "certified", True),
        (1.11, 1.0, "certified", False),
        (1.0, 1.11, "certified", False),
        (1.0, 1.0, "none", False),
    ],
)
def test_interference_is_judged_by_medians(first, between, mode, good):
    finding = InterferenceFinding("auto", 1.10, latencies(1.0, 1.0), latencies(first, between), {mode: 5})
    assert finding.is_good is good
    assert finding.ratio("first_text") == first


def test_ratio_of_zero_latencies():
    assert InterferenceFinding("auto", 1.10, latencies(0.0, 1.0), latencies(0.0, 1.0), {}).is_good
    assert not InterferenceFinding("auto", 1.10, latencies(0.0, 1.0), latencies(0.1, 1.0), {}).is_good


def test_too_few_requests_are_not_good():
    assert not InterferenceFinding(
        "auto", 1.10, latencies(1.0, 1.0), latencies(1.0, 1.0, count=19), {}
    ).is_good


def test_offline_engine_runs_the_same_load():
    config = EngineConfig(dtype="fp32", max_num_seqs=4, max_pass_tokens=64, kv_memory="4MiB")
    engine = tiny_engine(config)
    offline = OfflineLoad(
        engine, Workload(CONFIG, range(10, 200)), ArrivalConfig(concurrency=4, num_requests=30)
    )
    assert offline.run() > 0
    assert offline.num_requests == 30
    workload = Workload(CONFIG, range(10, 200))
    whole = sum(one.max_tokens for one in (workload.draw() for _ in range(30)))
    assert 0.5 * whole < offline.num_tokens < whole  # some are aborted
    assert not engine.has_requests
    engine.check()


def test_failed_server_start_has_a_reason():
    async def run():
        async with start_server(["/nowhere/to/be/found"]):
            pass

    with pytest.raises(EngineStopped, match="did not start"):
        asyncio.run(run())


def test_free_port_is_valid():
    assert 1024 <= free_port() <= 65535
