"""`holdfast bench serve`: options, refusals, exit codes, and whole runs on servers of its own."""

import json
import re

import pytest

from holdfast.bench.percentiles import Percentiles
from holdfast.bench.serve import bench, interference
from holdfast.bench.serve import offline as serve_offline
from holdfast.bench.serve.latency import ServeLatency
from holdfast.cli.commands.bench_serve import serve_arguments
from holdfast.engine.config import EngineConfig
from support.fake_server import FakeServer

QUICK = ("--num-requests", "12", "--concurrency", "3", "--prompt-tokens", "4-8", "--output-tokens", "2-5")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running


def test_running_server_is_measured(holdfast, server, tmp_path):
    saved, drawn = tmp_path / "a.json", tmp_path / "a.png"
    result = holdfast("bench", "serve", "--url", server.url, *QUICK, "--json", saved, "--plot", drawn)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "no problems" in result.stdout
    assert json.loads(saved.read_text())["num_requests"] == 12
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_problems_set_the_exit_code(holdfast, server):
    server.break_after = 1
    result = holdfast("bench", "serve", "--url", server.url, *QUICK)
    assert result.exit_code == 1
    assert "12 × broken stream" in result.stdout


def test_first_of_several_api_keys_is_sent(holdfast, server, monkeypatch):
    server.api_key = "first"
    monkeypatch.setenv("HOLDFAST_API_KEY", "first,second")
    assert holdfast("bench", "serve", "--url", server.url, *QUICK).exit_code == 0


def test_offline_engine_gets_the_same_load(holdfast, server, monkeypatch):
    calls = []
    monkeypatch.setattr(serve_offline, "measure_offline", lambda *given: calls.append(given) or 1e-3)
    result = holdfast(
        "bench", "serve", "coin", "--url", server.url, *QUICK, "--compare-offline", "--dtype", "fp32"
    )
    assert result.exit_code == 0, result.stdout + result.stderr
    ((engine, workload, corpus_ids, arrivals),) = calls
    assert (engine["model"], engine["dtype"], arrivals.concurrency) == ("coin", "fp32", 3)
    assert workload.prompt_tokens.high == 8 and len(corpus_ids) > 100


def test_slow_server_sets_the_exit_code(holdfast, server, monkeypatch):
    monkeypatch.setattr(serve_offline, "measure_offline", lambda *given: 1e12)
    result = holdfast("bench", "serve", "--url", server.url, *QUICK, "--compare-offline")
    assert result.exit_code == 1
    assert "at least 0.8" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "http://127.0.0.1:1", "--dtype", "auto"), "--dtype cannot be combined with --url"),
        (("a-model", "--url", "http://127.0.0.1:1"), "MODEL cannot be combined with --url"),
        (("--url", "http://127.0.0.1:1"), "no connection to http://127.0.0.1:1"),
        (("--url", "nonsense://"), "no address of a server"),
        (("--rate", "2", "--concurrency", "2"), "give one of them"),
        (("--num-requests", "2", "--duration", "2"), "give one of them"),
        (("--duration", "0"), "duration must be more than 0"),
        (("--rate", "2", "--compare-offline"), "a --rate decides"),
        (("--output-tokens", "9-2"), "--output-tokens"),
        (("--deterministic-share", "1.5"), "from 0 to 1"),
        (("--interference", "--url", "http://127.0.0.1:1"), "--url cannot be combined with --interference"),
        (("--interference", "--rate", "3"), "--rate cannot be combined with --interference"),
        (("--interference", "--determinism", "off"), "no deterministic traffic"),
        (("--interference", "--deterministic-share", "0"), "both kinds are needed"),
        (("--json", "/nowhere/a.json"), "there is no folder"),
    ],
)
def test_invalid_options_are_refused_before_a_server_starts(holdfast, monkeypatch, options, said):
    monkeypatch.setattr(bench, "start_server", lambda *given: pytest.fail("a server was started"))
    result = holdfast("bench", "serve", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_server_arguments_are_the_changed_options():
    assert serve_arguments(EngineConfig(certification="background")) == []
    options = EngineConfig("m", dtype="fp32", prefix_cache=False, max_num_seqs=3, certification="background")
    assert serve_arguments(options) == ["m", "--dtype", "fp32", "--max-num-seqs", "3", "--no-prefix-cache"]


def latencies(value, count=20):
    one = Percentiles(count, value, value, value)
    return ServeLatency(one, one, one, one)


@pytest.mark.parametrize(("among", "code"), [(0.109, 0), (0.2, 1)])
def test_interference_is_shown_and_judged(holdfast, monkeypatch, tmp_path, tiny_llama, among, code):
    seen = []

    async def measure(arguments, modes, workload, rounds, api_key, log):
        seen.append((arguments, tuple(modes), rounds))
        findings = [
            interference.InterferenceFinding(
                mode, interference.MAX_RATIO[mode], latencies(0.1), latencies(among), {"certified": 7}
            )
            for mode in modes
        ]
        return interference.InterferenceReport("a machine", "tiny", "4 + 5 tokens", rounds, findings)

    monkeypatch.setattr(interference, "measure_interference", measure)
    result = holdfast(
        "bench", "serve", tiny_llama, "--interference", "--rounds", "2", "--json", tmp_path / "i.json"
    )
    assert result.exit_code == code, result.stdout + result.stderr
    assert re.search(r"time to first text \(TTFT\) +verify +p50 +100 +\d+ +\d\.\d\dx +1\.25x", result.stdout)
    ((arguments, modes, rounds),) = seen
    assert (arguments, modes, rounds.pairs, rounds.num_deterministic) == (
        [str(tiny_llama)],
        ("auto", "verify"),
        2,
        2,
    )
    assert len(json.loads((tmp_path / "i.json").read_text())["findings"]) == 2


def test_interference_of_too_few_requests_is_reported(holdfast, monkeypatch):
    async def measure(arguments, modes, workload, rounds, api_key, log):
        finding = interference.InterferenceFinding("auto", 1.1, latencies(0.1), latencies(0.0, count=0), {})
        return interference.InterferenceReport("a machine", "tiny", "4 + 5 tokens", rounds, [finding])

    monkeypatch.setattr(interference, "measure_interference", measure)
    result = holdfast("bench", "serve", "--interference")
    assert result.exit_code == 1
    assert "too few requests were measured" in result.stdout


def test_load_on_a_started_server_and_on_the_offline_engine(holdfast, model, tmp_path):
    options = (
        "--concurrency",
        "6",
        "--num-requests",
        "40",
        "--prompt-tokens",
        "8-40",
        "--output-tokens",
        "4-40",
    )
    shares = ("--deterministic-share", "0.4", "--disconnect-share", "0.2")
    engine = ("--max-num-seqs", "4", "--kv-memory", "2MiB", "--dtype", "fp32", "--num-threads", "1")
    saved = tmp_path / "a.json"
    result = holdfast(
        "bench",
        "serve",
        model,
        *options,
        *shares,
        *engine,
        "--api-key",
        "secret",
        "--compare-offline",
        "--json",
        saved,
    )
    report = json.loads(saved.read_text())
    assert report["problems"] == [], result.stdout + result.stderr
    assert report["num_requests"] == 40 and report["num_left"] > 3
    assert report["modes"].keys() <= {"certified", "verified"}
    assert report["idle"]["holdfast_kv_pages_used"] == 0
    assert report["processes"]["fds_after"] <= report["processes"]["fds_before"]
    assert report["offline_tokens_per_second"] > 0


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(("verify",), id="verify"),
        pytest.param(("auto", "verify"), id="both", marks=pytest.mark.long),
    ],
)
def test_interference_on_started_servers(holdfast, model, tmp_path, monkeypatch, modes):
    monkeypatch.setattr(interference, "_WARM_UP_SECONDS", 0.5)
    saved = tmp_path / "i.json"
    small = ("--prompt-tokens", "8", "--output-tokens", "8-16", "--kv-memory", "2MiB", "--num-threads", "1")
    chosen = ("--determinism", *modes) if len(modes) == 1 else ()
    once = ("--interference", "--rounds", "1", "--duration", "1")
    result = holdfast("bench", "serve", model, *once, *small, *chosen, "--json", saved)
    assert result.exit_code in (0, 1), result.stderr  # the times of a test machine are not judged
    findings = json.loads(saved.read_text())["findings"]
    assert [one["mode"] for one in findings] == list(modes)
    assert set(findings[0]["modes"]) <= {"certified", "verified"} and findings[0]["modes"]
    assert set(findings[-1]["modes"]) == {"verified"}
