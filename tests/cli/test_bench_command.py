"""`holdfast bench`: output and exit codes."""

import re

import pytest

from holdfast.bench import determinism, features, speed
from holdfast.bench.stress import ResultBits, StressSummary
from holdfast.cli.options.engine import serve_arguments
from holdfast.core.results import Stats
from holdfast.engine.config import EngineConfig
from support.fake_server import FakeServer

SPEED = {
    "ordinary": {"prefill 512": 150.0, "1 stream": 25.0},
    "deterministic, auto": {"prefill 512": 148.0, "1 stream": 24.0},
}
QUICK = ("--clients", "3", "--seconds", "0.3", "--prompt-words", "6", "--output-tokens", "5")


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running


@pytest.fixture
def few(monkeypatch):
    def find(engine, prompt):
        found = {feature.name: feature for feature in features.find_features(engine, prompt)}
        return [found[name] for name in ("greedy", "logprobs", "JSON schema")]

    monkeypatch.setattr(determinism, "NUM_COMBINATIONS", 1)
    monkeypatch.setattr(determinism, "find_features", find)


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_determinism_has_one_answer_and_several_without_the_guarantee(holdfast, model):
    if not determinism.products_disagree():
        pytest.skip("on this CPU the fp32 product is one bit class: nothing can differ")
    result = holdfast("bench", "determinism", model, "--runs", "2")
    rows = re.findall(r" (on|off) +(\d+) +(\d+) .* ([0-9a-f]{8})", result.stdout)
    assert [row[:2] for row in rows] == 4 * [("on", "2")] + 2 * [("off", "8")]
    assert all(row[2] == "1" for row in rows[:4])
    assert max(int(row[2]) for row in rows[4:]) > 1


@pytest.mark.usefixtures("few")
def test_several_answers_with_the_guarantee_exit_with_1(holdfast, model, monkeypatch):
    answers = {ResultBits((number,), ()): 1 for number in range(2)}
    monkeypatch.setattr(
        determinism, "stress_test", lambda *given, **named: StressSummary(answers, Stats(), 2)
    )
    result = holdfast("bench", "determinism", model, code=1)
    assert "must be one" in result.stdout


def test_speeds_and_ratios_are_shown(holdfast, model, monkeypatch):
    monkeypatch.setattr(speed, "measure", lambda *given, **named: SPEED)
    result = holdfast("bench", "speed", model)
    assert re.search(r"deterministic, auto +148 +24", result.stdout)
    assert re.search(r"deterministic, auto / ordinary +0\.99x +0\.96x", result.stdout)


def test_running_server_is_measured(holdfast, server, monkeypatch):
    server.api_key = "first"
    monkeypatch.setenv("HOLDFAST_API_KEY", "first,second")
    result = holdfast("bench", "serve", "--url", server.url, "--deterministic", "2", *QUICK)
    assert "no problems" in result.stdout
    assert re.search(r"first text +deterministic +\d+ +\d", result.stdout)


def test_problems_set_the_exit_code(holdfast, server):
    server.break_after = 1
    result = holdfast("bench", "serve", "--url", server.url, *QUICK, code=1)
    assert "broken stream" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "http://127.0.0.1:1", "--dtype", "auto"), "--dtype cannot be combined with --url"),
        (("a-model", "--url", "http://127.0.0.1:1"), "MODEL cannot be combined with --url"),
        (("--url", "http://127.0.0.1:1"), "cannot be measured"),
        (("--url", "nonsense://"), "nonsense"),
    ],
)
def test_server_that_cannot_be_measured_is_refused(holdfast, options, said):
    result = holdfast("bench", "serve", *options, code=2)
    assert said in result.stderr


def test_server_is_started_with_the_changed_options(holdfast, model):
    assert serve_arguments(EngineConfig(certification="startup")) == []
    options = EngineConfig("m", dtype="fp32", prefix_cache=False, max_num_seqs=3, certification="startup")
    assert serve_arguments(options) == ["m", "--dtype", "fp32", "--max-num-seqs", "3", "--no-prefix-cache"]
    engine = ("--max-num-seqs", "4", "--kv-memory", "2MiB", "--dtype", "fp32", "--num-threads", "1")
    result = holdfast("bench", "serve", model, *QUICK, *engine, "--api-key", "secret")
    assert "one answer to each deterministic prompt" in result.stdout
