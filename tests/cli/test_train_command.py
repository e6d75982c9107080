"""`holdfast train thinking`: one command from nothing to a model folder, and what it refuses."""

from dataclasses import replace
from pathlib import Path

from holdfast.train.settings import PRESETS

TINY = ["--size", "tiny", "--steps", "2", "--batch", "4", "-n", "2", "--device", "cpu"]


def test_help(holdfast, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = holdfast("train", "thinking", "--help").stdout
    for word in ("--preset", "--task", "--form", "--max-events", "--window", "--resume", "--device"):
        assert word in shown
    assert " thinking " in holdfast("train", "--help").stdout


def test_a_model_is_trained_written_and_resumed(holdfast, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "short", replace(PRESETS["short"], eval_texts=2, eval_events=(1,)))
    out = tmp_path / "model"
    done = holdfast("train", "thinking", "--out", str(out), "--preset", "short", *TINY)
    assert done.exit_code == 0, done.stderr
    names = {each.name for each in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "thinking.json", "curves.png"}
    assert holdfast("train", "thinking", "--out", str(out), "--resume").exit_code == 0


def test_what_cannot_be_is_refused(holdfast, tmp_path: Path):
    out = ["train", "thinking", "--out", str(tmp_path / "m")]
    for wrong, named in (
        (["--task", "juggling"], "juggling"),
        (["--size", "huge"], "--size"),
        (["--form", "loud"], "--form"),
        (["--preset", "gold"], "--preset"),
        (["--resume"], "no run to resume"),
        (["--resume", "--steps", "4"], "--resume"),
        (["--device", "abacus"], "abacus"),
        (["--task", f"babi:{tmp_path}/none.txt"], "none.txt"),
    ):
        done = holdfast(*out, *wrong)
        assert done.exit_code == 2
        assert named in done.stderr
