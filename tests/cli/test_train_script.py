"""scripts/train_thinking.py: its commands exist, and a tiny model goes through all stages."""

import importlib.util
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

from holdfast.cli.main import app

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_thinking.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_thinking", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def options(tmp_path: Path, **changes: object) -> Namespace:
    for number in (1, 2, 7, 8):
        for part in ("train", "test"):
            (tmp_path / f"qa{number}_x_{part}.txt").touch()
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").touch()
    fields = {"out": tmp_path / "out", "babi": str(tmp_path), "gsm8k": str(tmp_path), "backbone": "smollm2"}
    more = {
        "device": "cpu",
        "minutes": 7.0,
        "steps": 1800,
        "gsm8k_steps": 600,
        "examples": 1000,
        "count": 10,
        "kv_memory": "1G",
    }
    return Namespace(**fields, **more | {"tiny": False} | changes)


@pytest.mark.parametrize("tiny", [False, True], ids=["whole", "tiny"])
def test_every_command_of_the_script_is_understood(script: ModuleType, tmp_path: Path, tiny: bool) -> None:
    plan = script.Plan(options(tmp_path, tiny=tiny))
    root, names = get_command(app), set()
    for stage in script.STAGES:
        for command in plan.stage(stage):
            group, name, *arguments = command.arguments
            commands = root.get_command(None, group)  # type: ignore[attr-defined]
            commands.get_command(None, name).make_context(name, list(arguments))
            names.add(command.name)
    assert {"babi-thinking", "entities-cot", "adapter", "coin", "gsm8k-cot-2", "eval-gsm8k"} <= names
    for group in ("babi", "entities"):
        forms = [each.arguments for each in plan.stage(group)]
        same = {tuple(a for a in each if f"{group}-" not in a and a not in script.FORMS) for each in forms}
        assert len(forms) == 3 and len(same) == 1


def test_interrupted_runs_are_resumed_and_complete_ones_skipped(script: ModuleType, tmp_path: Path) -> None:
    (coin,) = script.Plan(options(tmp_path)).stage("coin")
    assert "--resume" not in coin.line()
    coin.run_folder.mkdir(parents=True)
    (coin.run_folder / "training.safetensors").touch()
    assert coin.line()[-3:] == ["--resume", "--device", "cpu"] and "--preset" not in coin.line()
    coin.result.touch()
    assert script.run_together([coin], tmp_path / "logs", None)  # starts nothing


@pytest.mark.long
def test_tiny_model_goes_through_all_stages(tmp_path: Path) -> None:
    story = "1 Nora went to the hall.\n2 Where is Nora?\thall\t1\n" * 20
    for part in ("train", "test"):
        (tmp_path / f"qa1_x_{part}.txt").write_text(story)
        line = (
            '{"question": "Ann has 2 pens and 3 cups. How many things?", "answer": "<<2+3=5>>5\\n#### 5"}\n'
        )
        (tmp_path / f"{part}.jsonl").write_text(line * 20)
    out = tmp_path / "runs"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--tiny", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--babi", str(tmp_path), "--gsm8k", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "adapter" / "adapter.json").is_file()
    for name in ("babi", "entities", "long-entities", "adapter", "coin", "gsm8k"):
        assert (out / f"eval-{name}" / "eval-thinking.json").is_file(), name
