"""Commands and options of other engines are answered in one line with ours."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from holdfast.cli.main import app
from holdfast.engine.other_engines import answers, option_hint


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["run", "llama3"], "holdfast chat llama3; for one prompt: holdfast generate -m llama3 PROMPT"),
        (["run"], "holdfast chat MODEL"),
        (["pull", "org/name"], "downloaded when it is first used: holdfast serve org/name"),
        (["list"], "holdfast models lists"),
        (["launch_server", "--model-path", "x"], "holdfast serve x"),
        (["serve", "--model-path", "x"], "give its model without an option: holdfast serve MODEL"),
        (["serve", "--ctx-size", "4"], "serve has no option --ctx-size; give --max-model-len"),
        (["serve", "--gpu-memory-utilization", "0.9"], "give --kv-memory, such as 20GiB"),
        (["serve", "--tensor-parallel-size", "2"], "Holdfast uses one GPU"),
        (["generate", "--temp", "1", "x"], "generate has no option --temp; give --temperature"),
        (["bench", "speed", "--threads", "1"], "speed has no option --threads; give --num-threads"),
    ],
)
def test_other_engines_words_are_answered_with_ours(holdfast, arguments, answer):
    result = holdfast(*arguments, code=2)
    assert answer in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["generat", "x"], "Did you mean 'generate'?"),
        (["serve", "--prot", "1"], "--port"),
    ],
)
def test_mistyped_words_are_answered_with_the_near_one(holdfast, arguments, near, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = holdfast(*arguments, code=2)
    assert near in result.stderr


def test_hints_name_what_exists():
    group = get_command(app)
    commands = {name: group.get_command(None, name) for name in group.list_commands(None)}
    assert not set(answers("commands")) & set(commands)
    options = {
        name
        for one in commands.values()
        for param in one.params
        for name in (*param.opts, *param.secondary_opts)
    }
    assert {ours.split(",")[0] for ours in answers("options").values()} <= options


def test_vllm_flags_of_the_documentation_exist_or_have_a_hint():
    text = Path(__file__, "../../../docs/from-vllm.md").resolve().read_text(encoding="utf-8")
    table = text.split("## `vllm serve` and `holdfast serve`")[1].split("\n## ")[0]
    flags = {
        flag
        for row in re.findall(r"^\| (.*?) \|", table, re.M)
        for flag in re.findall(r"--[a-z][a-z-]+", row)
    }
    serve = get_command(app).get_command(None, "serve")
    options = {name for param in serve.params for name in (*param.opts, *param.secondary_opts)}
    assert len(flags) > 40
    assert {one for one in flags - options if option_hint("serve", one, options) is None} == set()
