"""benchmarks/thinking/stages.py: its commands exist, and a tiny model goes through all stages."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarks.thinking import stages
from holdfast.cli.main import app


def options(folder: Path, *more: str) -> Namespace:
    for number in (1, 2, 7, 8):
        for part in ("train", "test"):
            (folder / f"qa{number}_x_{part}.txt").touch()
    data = ("--babi", str(folder), "--gsm8k", str(folder), "--device", "cpu")
    return stages.read_options(["--out", str(folder / "out"), *data, *more])


@pytest.mark.parametrize("more", [[], ["--tiny"]], ids=["whole", "tiny"])
def test_every_command_of_the_stages_is_understood(tmp_path: Path, more: list[str]) -> None:
    plan = stages.plan(options(tmp_path, *more))
    root, names = get_command(app), set()
    for command in (each for stage in plan.values() for each in stage):
        names.add(command.name)
        if command.arguments[0] == "-m":
            _, _, group, name, *arguments = command.arguments
            commands = root.get_command(None, group)  # type: ignore[attr-defined]
            commands.get_command(None, name).make_context(name, list(arguments))
    assert {"babi-thinking", "entities-cot", "adapter", "coin", "gsm8k-cot-2", "eval-gsm8k"} <= names
    for group in ("babi", "entities"):
        forms = [each.arguments for each in plan[group]]
        same = {tuple(a for a in each if f"{group}-" not in a and a not in stages.FORMS) for each in forms}
        assert len(forms) == 3 and len(same) == 1


@pytest.mark.long
def test_tiny_model_goes_through_all_stages(tmp_path: Path) -> None:
    story = "1 Nora went to the hall.\n2 Where is Nora?\thall\t1\n" * 20
    line = '{"question": "Ann has 2 pens and 3 cups. How many things?", "answer": "<<2+3=5>>5\\n#### 5"}\n'
    for part in ("train", "test"):
        (tmp_path / f"qa1_x_{part}.txt").write_text(story)
        (tmp_path / f"{part}.jsonl").write_text(line * 20)
    out = tmp_path / "runs"
    command = [sys.executable, stages.__file__, "--out", str(out), "--tiny", "--device", "cpu"]
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
