"""`holdfast train thinking`: one command from nothing to a model folder, and what it refuses."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_thinking.settings import PRESETS

TINY = ["--size", "tiny", "--steps", "2", "--batch", "4", "-n", "2", "--device", "cpu"]


def test_train_help(holdfast, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = holdfast("train", "thinking", "--help").stdout
    for word in (
        "--preset",
        "--task",
        "--form",
        "--max-events",
        "--window",
        "--resume",
        "--minutes",
        "--compile",
    ):
        assert word in shown
    assert " thinking " in holdfast("train", "--help").stdout


def test_train_writes_a_model_and_resumes(holdfast, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "short", replace(PRESETS["short"], eval_texts=2, eval_events=(1,)))
    out = tmp_path / "model"
    done = holdfast("train", "thinking", "--out", str(out), "--preset", "short", *TINY)
    assert done.exit_code == 0, done.stderr
    names = {each.name for each in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "thinking.json", "curves.png"}
    assert holdfast("train", "thinking", "--out", str(out), "--resume").exit_code == 0
    again = ("train", "thinking", "--out", str(out), "--preset", "short", *TINY)
    refused = holdfast(*again)
    assert refused.exit_code == 2 and "--overwrite starts again" in refused.stderr
    assert holdfast(*again, "--overwrite").exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "SIGTERM"])
def test_interrupted_run_resumes_with_the_same_result(holdfast, tmp_path: Path, monkeypatch, number):
    from holdfast_thinking.run import loop

    monkeypatch.setitem(PRESETS, "short", replace(PRESETS["short"], eval_texts=2, eval_events=(1,)))
    wanted = ("--preset", "short", *TINY, "--steps", "4")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert holdfast("train", "thinking", "--out", str(whole), *wanted).exit_code == 0
    take_step, before = loop._take_step, signal.getsignal(number)

    def interrupt(run: loop.TrainingRun, step: Any) -> Any:
        if run.step == 1:
            os.kill(os.getpid(), number)
        return take_step(run, step)

    monkeypatch.setattr(loop, "_take_step", interrupt)
    done = holdfast("train", "thinking", "--out", str(cut), *wanted)
    assert done.exit_code == 130 and "interrupted after step 2 of 4" in done.stderr
    assert not (cut / "model.safetensors").exists()
    assert signal.getsignal(number) is before, "whoever started this may have interrupts ignored"
    assert holdfast("train", "thinking", "--out", str(cut), "--resume").exit_code == 0
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_train_logs_losses_without_a_terminal(holdfast, tmp_path: Path, monkeypatch):
    from holdfast_thinking.cli import train as command

    monkeypatch.setattr(command, "_LOG_STEPS", 10)
    wanted = ["--max-thought", "4", "--no-while-answering", "--eval-every", "0", "--no-compile"]
    out = ["train", "thinking", "--out", str(tmp_path / "m"), *TINY, "--steps", "11", *wanted]
    done = holdfast(*out)
    assert done.exit_code == 0, done.stderr
    assert "step 10 of 11: loss" in done.stderr and "ms a step" in done.stderr
    assert '"max_thought": 4' in (tmp_path / "m" / "thinking.json").read_text()


def test_wrong_train_options_are_refused(holdfast, tmp_path: Path):
    out = ["train", "thinking", "--out", str(tmp_path / "m")]
    for wrong, named in (
        (["--task", "juggling"], "juggling"),
        (["--size", "huge"], "--size"),
        (["--form", "loud"], "--form"),
        (["--task", "own.py:Own"], "own.py cannot be read"),
        (["--preset", "gold"], "--preset"),
        (["--resume"], "no run to resume"),
        (["--resume", "--steps", "4"], "--resume"),
        (["--device", "abacus"], "abacus"),
        (["--task", f"jsonl:{tmp_path}/none.jsonl"], "none.jsonl"),
        (["--chunk", "7"], "divide a KV page"),
        (["--l-in", "9"], "l_in"),
        (["--l-in", "3", "--l-out", "2"], "l_out"),
        (["--out", str(Path(__file__))], "cannot be written to"),
        (["--out", "/proc/nowhere"], "cannot be written to"),
    ):
        done = holdfast(*out, *wrong)
        assert done.exit_code == 2
        assert named in done.stderr
