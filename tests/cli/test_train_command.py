"""`holdfast train thinking`: one command from nothing to a model folder, and what it refuses."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_thinking.settings import PRESETS

SMALL = ("size=tiny", "max_events=2")
TINY = [*("--steps", "2", "--batch", "4", "--device", "cpu"), *(f"--set={each}" for each in SMALL)]


def test_train_writes_a_model_and_resumes(holdfast, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "short", replace(PRESETS["short"], eval_texts=2, eval_events=(1,)))
    out = tmp_path / "model"
    holdfast("train", "thinking", "--out", str(out), "--preset", "short", *TINY)
    names = {each.name for each in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "thinking.json", "curves.jsonl"}
    holdfast("train", "thinking", "--out", str(out), "--resume")
    again = ("train", "thinking", "--out", str(out), "--preset", "short", *TINY)
    refused = holdfast(*again, code=2)
    assert "--overwrite starts again" in refused.stderr
    holdfast(*again, "--overwrite")


def test_interrupted_run_resumes_with_the_same_result(holdfast, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "short", replace(PRESETS["short"], eval_texts=2, eval_events=(1,)))
    wanted, whole = ("--preset", "short", *TINY, "--steps", "4"), tmp_path / "whole"
    holdfast("train", "thinking", "--out", str(whole), *wanted)
    _train_interrupted(holdfast, tmp_path / "terminated", wanted, signal.SIGTERM)
    _train_interrupted(holdfast, tmp_path / "cut", wanted, signal.SIGINT)
    holdfast("train", "thinking", "--out", str(tmp_path / "cut"), "--resume")
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def _train_interrupted(holdfast, out: Path, wanted: tuple[str, ...], number: signal.Signals) -> None:
    """Send a signal in the second of four steps."""
    from holdfast_thinking.run import loop

    take_step, before = loop._take_step, signal.getsignal(number)

    def interrupt(run: loop.TrainingRun, step: Any, stops: Any) -> Any:
        if run.step == 1:
            os.kill(os.getpid(), number)
        return take_step(run, step, stops)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_take_step", interrupt)
        done = holdfast("train", "thinking", "--out", str(out), *wanted, code=130)
    assert "interrupted after step 1 of 4" in done.stderr
    assert not (out / "model.safetensors").exists()
    assert signal.getsignal(number) is before, "whoever started this may have interrupts ignored"


def test_train_logs_losses_without_a_terminal(holdfast, tmp_path: Path, monkeypatch):
    from holdfast_thinking.cli import train as command

    monkeypatch.setattr(command, "_LOG_SECONDS", 0)
    more = ("while_answering=false", "compile=false", "weights.thought=2")
    wanted = ["--max-thought", "4", "--eval-every", "0", *(f"--set={each}" for each in more)]
    out = ["train", "thinking", "--out", str(tmp_path / "m"), *TINY, "--steps", "11", *wanted]
    done = holdfast(*out)
    assert "step 10 of 11: loss" in done.stderr and "ms a step" in done.stderr
    assert done.stderr.index("GB of memory") < done.stderr.index("step 10")
    thinking = json.loads((tmp_path / "m" / "thinking.json").read_text())
    assert (thinking["max_thought"], thinking["while_answering"]) == (4, False)


def test_wrong_train_options_are_refused(holdfast, tmp_path: Path):
    out = ["train", "thinking", "--out", str(tmp_path / "m")]
    for wrong, named in (
        (["--task", "juggling"], "juggling"),
        (["--set", "size=huge"], "size is 'huge'"),
        (["--set", "warmth=3"], "expected FIELD=VALUE"),
        (["--set", "warmup=warm"], "warmup is 'warm'"),
        (["--set", "weights.all=1"], "weights.answer"),
        (["--form", "loud"], "'loud' is not one of"),
        (["--task", "own.py:Own"], "own.py cannot be read"),
        (["--preset", "gold"], "--preset"),
        (["--resume"], "no run to resume"),
        (["--resume", "--steps", "4"], "--resume"),
        (["--device", "abacus"], "abacus"),
        (["--task", f"jsonl:{tmp_path}/none.jsonl"], "none.jsonl"),
        (["--chunk", "7"], "divide a KV page"),
        (["--out", str(Path(__file__))], "cannot be written to"),
    ):
        done = holdfast(*out, *wrong, code=2)
        assert named in done.stderr


@pytest.mark.long
def test_preset_of_the_adapter_trains_with_its_backbones_own_answers(holdfast, tmp_path: Path, monkeypatch):
    from holdfast_thinking.cli import train as command

    monkeypatch.setattr(command, "_NUM_GENERAL", 80)
    plain, out = tmp_path / "plain", tmp_path / "adapter"
    vocabulary = ["--task", "coin-talk", "--form", "none", "--window", "0"]
    holdfast("train", "thinking", "--out", str(plain), *vocabulary, *TINY)
    shape = ["--backbone", str(plain), "--l-in", "1", "--l-out", "2", "--steps", "1", "--batch", "4"]
    more = [
        f"--set={each}"
        for each in ("eval_texts=1", "accumulate=1", "max_events=1", "eval_events=1", "follow_ups=0")
    ]
    holdfast(
        "train", "thinking", "--out", str(out), "--preset", "smollm2-coin", *shape, *more, "--device", "cpu"
    )
    general = [json.loads(line) for line in (out / "general.jsonl").read_text().splitlines()]
    assert general and (out / "adapter.json").is_file()
    info = json.loads((out / "training.json").read_text())
    assert info["tasks"] == ["coin-talk", f"chat:{out / 'general.jsonl'}"] and info["thinks_answer"]
