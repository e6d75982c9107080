"""A load on a server: everything is asked, everything is counted, and what is wrong is found."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from holdfast.bench.serve.bench import Target, look, measure
from holdfast.bench.serve.http_connection import Address
from holdfast.bench.serve.interference import Finding, Rounds, interfere
from holdfast.bench.serve.latency import Latency, Percentiles
from holdfast.bench.serve.load import Pace
from holdfast.bench.serve.monitor import PAGES_USED, RUNNING, WAITING
from holdfast.bench.serve.offline import OfflineLoad
from holdfast.bench.serve.server_process import free_port, serving
from holdfast.bench.serve.workload import Jobs, Shape, Span
from holdfast.bench.tiny import tiny_engine
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from support.fake_server import FakeServer, steady_pieces

SHAPE = Shape(Span(4, 8), Span(3, 9), deterministic_share=0.4, disconnect_share=0.2, pool_len=2)
PACE = Pace(concurrency=5, num_requests=60)


@pytest.fixture
def server():
    with FakeServer(metrics={RUNNING: 0, WAITING: 0, PAGES_USED: 0}) as running:
        yield running


def load(server, shape=SHAPE, pace=PACE, **settings):
    target = Target("fake", Address.parse(server.url), **settings)
    report, _ = asyncio.run(measure(target, shape, pace, lambda _: None))
    return report


def test_a_closed_loop_asks_as_often_as_it_should_and_finds_all_well(server):
    report = load(server)
    assert report.problems == [] and report.is_good
    assert report.num_requests == 60
    assert len(server.completions()) == 60 + SHAPE.pool_len  # the pool alone, first
    assert 0 < report.num_left < 30
    assert report.tokens_per_second > 0
    assert (
        report.latency["ordinary"].first_text.count + report.latency["deterministic"].first_text.count <= 60
    )
    assert [one.distinct for one in report.answers] == [1, 1]
    assert sum(one.asked for one in report.answers) == SHAPE.pool_len + report_deterministic(server)
    assert report.modes.keys() == {"certified"}
    assert report.stats["rolled_back"] == report.modes["certified"]


def report_deterministic(server):
    return sum("deterministic" in one.body for one in server.completions()[SHAPE.pool_len :])


def test_no_more_clients_than_wanted_ask_at_once(server):
    load(server, replace(SHAPE, disconnect_share=0.0), Pace(concurrency=3, num_requests=30))
    assert server.num_connections <= 4


def test_a_load_of_so_many_seconds_ends(server):
    report = load(server, pace=Pace(concurrency=2, duration=0.3))
    assert report.seconds == pytest.approx(0.3)
    assert report.num_requests > 2
    assert report.is_good


def test_arrivals_by_chance(server):
    report = load(server, pace=Pace(rate=400.0, num_requests=40))
    assert report.num_requests == 40
    assert report.is_good


def test_the_same_seed_asks_the_same(server):
    pace = Pace(concurrency=1, num_requests=20)
    load(server, pace=pace)
    first = [one.body for one in server.completions()]
    server.asked.clear()
    load(server, pace=pace)
    assert [one.body for one in server.completions()] == first


def test_a_deterministic_prompt_with_two_answers_is_found(server):
    numbers = itertools.count()

    def unsteady(body):
        pieces = steady_pieces(body)
        return [*pieces[:-1], "other"] if body.get("deterministic") and next(numbers) == 7 else pieces

    server.pieces = unsteady
    report = load(server, replace(SHAPE, disconnect_share=0.0))
    assert len(report.problems) == 1
    assert "has 2 distinct answers" in report.problems[0]


def test_ordinary_answers_may_differ(server):
    numbers = itertools.count()
    server.pieces = lambda body: steady_pieces(body) if body.get("deterministic") else [f"{next(numbers)}"]
    assert load(server).is_good


def test_errors_are_counted_by_kind(server):
    server.cut_after = 2
    report = load(server, replace(SHAPE, disconnect_share=0.0))
    assert report.errors == {"broken stream": 60}
    assert not report.is_good
    server.cut_after, server.status = None, 429
    assert load(server, replace(SHAPE, disconnect_share=0.0)).errors == {"status 429": 60}


def test_a_page_that_is_not_given_back_is_found(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.monitor._IDLE_SECONDS", 0.1)
    server.metrics[PAGES_USED] = 2
    assert load(server).problems == ["after the load 2 pages are still held"]


def test_a_server_with_other_metrics_is_measured_all_the_same(server):
    server.metrics = {}
    report = load(server)
    assert report.is_good and report.idle == {}


def test_a_server_that_needs_a_key(server):
    server.api_key = "secret"
    with pytest.raises(ConfigError, match="401"):
        load(server)
    assert load(server, api_key="secret").is_good


def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_asked(server):
    with pytest.raises(ConfigError, match="room for 2048"):
        load(server, replace(SHAPE, prompt_tokens=Span(2000, 2100)))
    assert server.completions() == []


def test_what_answers_must_be_a_server(server):
    async def run():
        target = Target("fake", Address.parse(f"{server.url}/else"))
        async with target.client() as client:
            await look(client, SHAPE)

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
def test_paces_that_cannot_be(wrong):
    with pytest.raises(ConfigError):
        Pace(**wrong)


def test_rounds_alternate_and_swap():
    assert Rounds(pairs=3).order() == [False, True, True, False, False, True]
    assert Rounds(8).num_deterministic == 2


def test_interference_compares_ordinary_requests_only(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.interference._WARM_UP_SECONDS", 0.05)
    shape = replace(SHAPE, disconnect_share=0.0)
    target = Target("fake", Address.parse(server.url))
    rounds = Rounds(num_streams=4, pairs=2, seconds=0.2)
    model, finding = asyncio.run(interfere(target, "verify", shape, rounds, lambda _: None))
    assert (model, finding.wanted) == ("fake", 1.25)
    asked = [bool(one.body.get("deterministic")) for one in server.completions()]
    assert 0 < finding.modes["certified"] < sum(asked)  # less those of the warm-up
    prompts = [tuple(one.body["prompt"]) for one in server.completions()]
    assert len(set(prompts)) > 0.9 * len(prompts)  # no pool; that two are drawn alike is possible
    ordinary = finding.without.end_to_end.count + finding.among.end_to_end.count
    assert 0 < ordinary < len(asked) - sum(asked)


def test_a_request_that_fails_spoils_interference(server, monkeypatch):
    monkeypatch.setattr("holdfast.bench.serve.interference._WARM_UP_SECONDS", 0.05)
    server.status = 500
    target = Target("fake", Address.parse(server.url))
    with pytest.raises(EngineStopped, match="nothing was measured"):
        asyncio.run(interfere(target, "auto", SHAPE, Rounds(4, 1, 0.1), lambda _: None))


def waits(first, between, count=20):
    def of(value):
        return Percentiles(count, value, value, value)

    return Latency(of(first), of(between), of(1.0), of(1.0))


@pytest.mark.parametrize(
    ("first", "between", "mode", "good"),
    [
        (1.09, 1.0, "certified", True),
        (1.11, 1.0, "certified", False),
        (1.0, 1.11, "certified", False),
        (1.0, 1.0, "none", False),
    ],
)
def test_what_interference_is_judged_by(first, between, mode, good):
    finding = Finding("auto", 1.10, waits(1.0, 1.0), waits(first, between), {mode: 5})
    assert finding.is_good is good
    assert finding.ratio("first_text") == first


def test_a_wait_of_nothing_has_a_ratio_all_the_same():
    assert Finding("auto", 1.10, waits(0.0, 1.0), waits(0.0, 1.0), {}).is_good
    assert not Finding("auto", 1.10, waits(0.0, 1.0), waits(0.1, 1.0), {}).is_good


def test_too_little_to_measure_is_not_good():
    assert not Finding("auto", 1.10, waits(1.0, 1.0), waits(1.0, 1.0, count=19), {}).is_good


def test_the_offline_engine_runs_the_same_load():
    config = EngineConfig(dtype="fp32", max_num_seqs=4, max_pass_tokens=64, kv_memory="4MiB")
    engine = tiny_engine(config)
    offline = OfflineLoad(engine, Jobs(SHAPE, range(10, 200)), Pace(concurrency=4, num_requests=30))
    assert offline.run() > 0
    assert offline.num_asked == 30
    jobs = Jobs(SHAPE, range(10, 200))
    whole = sum(job.max_tokens for job in (jobs.draw() for _ in range(30)))
    assert 0.5 * whole < offline.num_tokens < whole  # some left
    assert not engine.has_requests
    engine.check()


def test_a_server_that_does_not_start_says_why():
    async def run():
        async with serving(["/nowhere/to/be/found"]):
            pass

    with pytest.raises(EngineStopped, match="did not start"):
        asyncio.run(run())


def test_a_free_port_is_free():
    assert 1024 <= free_port() <= 65535
