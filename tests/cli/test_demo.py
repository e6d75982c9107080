"""The demo on a tiny model: its verdict, and that it can fail."""

import io
import json
import random

import pytest
from rich.console import Console

from holdfast.bench import demo
from holdfast.bench.faults import FaultyProposer
from holdfast.engine.llm.llm import LLM
from holdfast.recordings import recording_files


@pytest.fixture
def llm(model):
    return LLM(model, kv_memory="8MiB")


def show(llm):
    screen = io.StringIO()
    good = demo.run(llm, Console(file=screen, width=120))
    return good, screen.getvalue()


def test_all_bits_are_the_same_after_rollbacks(llm):
    good, shown = show(llm)
    assert good, shown
    assert "Deterministic: every token and every logprob bit is the same" in shown
    assert shown.count("verified") >= 2
    if llm.engine.certificate.subject["recipe"]["path"] == "c":  # library kernels may disagree by themselves
        assert "this machine's kernels gave the same bits under these loads, without a promise" in shown
        for one in map(json.loads, recording_files()):
            assert "Not live" in shown and f"Recorded on {one['date']} on {one['machine']['device']}" in shown


def test_first_candidate_is_a_fault():
    assert random.Random(demo.FAULT_SEED).random() < demo.FAULT_RATE


def test_missing_rollback_is_reported(llm, monkeypatch):
    if llm.engine.certificate.subject["recipe"]["path"] != "c":
        pytest.skip("fast library passes may disagree by themselves; the compiled ones never do")
    monkeypatch.setattr(FaultyProposer, "_corrupt_samples", lambda self, samples: samples)
    good, shown = show(llm)
    assert not good
    assert "No rollback happened" in shown


def test_difference_is_reported(llm, monkeypatch):
    ask = demo._run_in
    seeds = iter(range(100))

    def another_seed_each_time(*given, **how):
        monkeypatch.setattr(demo, "PARAMS", demo.replace(demo.PARAMS, seed=next(seeds)))
        return ask(*given, **how)

    monkeypatch.setattr(demo, "_run_in", another_seed_each_time)
    good, shown = show(llm)
    assert not good
    assert "DIFFERENT" in shown
    assert "Ordinary: under load the same prompt and seed gave other tokens." in shown
    assert "Not live" not in shown
