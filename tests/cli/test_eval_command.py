"""`holdfast eval thinking`: from folders to tables and JSON, and what it refuses."""

import json
from pathlib import Path

import torch

from holdfast_thinking.run.export import export
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.settings import SIZES, TrainingSettings


def test_eval_of_a_model_folder(holdfast, tmp_path: Path):
    settings = TrainingSettings(max_events=2, size=SIZES["tiny"], long_texts=False)
    model, out = tmp_path / "model", tmp_path / "out"
    export(start_run(settings, torch.device("cpu")).built, settings, model)
    asked = ("eval", "thinking", f"own={model}", "--events", "2,3", "--count", "2", "--device", "cpu")
    done = holdfast(*asked, "--ablate", "--out", out)
    assert "own" in done.stdout and "N = 2" in done.stdout
    held = json.loads((out / "eval-thinking.json").read_text())
    assert [each["events"] for each in held["accuracy"]] == [2, 3]


def test_wrong_eval_options_are_refused(holdfast, tmp_path: Path, model: str):
    for wrong, named in (
        ([model], "training.json"),
        ([model, "--events", "ten"], "--events"),
        ([model, "--baseline", f"b={tmp_path}/none"], "no model folder"),
    ):
        done = holdfast("eval", "thinking", *wrong, code=2)
        assert named in done.stderr, (wrong, done.stderr)
