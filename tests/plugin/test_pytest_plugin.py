"""The pytest plugin: the example project as its user runs it, and what it says of planted changes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from pytest_holdfast.compare import describe_differences
from pytest_holdfast.server import Exchange

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest"


def run_pytest(folder: Path, *options: str, **environment: str) -> str:
    """Run the example's tests. Return the output, with the statuses of the tests in one line each."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "pytest_holdfast",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    given = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=600).stdout


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example"))


@pytest.mark.parametrize(
    "processes",
    [(), pytest.param(("-p", "xdist", "-n", "2"), marks=pytest.mark.long)],
    ids=["one", "several"],
)
def test_the_example_gives_its_recorded_answers(example: Path, processes: tuple[str, ...]) -> None:
    output = run_pytest(example, "--holdfast", *processes, CI="true")
    assert "3 passed" in output, output


def test_planted_changes_of_an_application_are_shown(example: Path) -> None:
    application = example / "where_is_heads.py"
    changed = (
        application.read_text().replace("Is it still", "Is it").replace("temperature=0.7", "temperature=0.6")
    )
    application.write_text(changed)
    tests = example / "test_where_is_heads.py"
    tests.write_text(
        tests.read_text()
        + '\n\ndef test_new(holdfast: Any) -> None:\n    is_heads_up("", holdfast.base_url)\n'
    )
    output = run_pytest(example, "--holdfast", CI="true")
    assert "1 passed" in output, "the stream did not change"
    assert re.search(
        r'-"The coin .* Is it still heads up\? A:"\n.*\+"The coin .* Is it heads up\? A:"', output
    )
    assert re.search(r"the request's temperature changed:\n\s+-0.7\n\s+\+0.6", output)
    assert "test_new - Failed: no answers are recorded" in output


def changed_weight(model: Path, folder: Path) -> Path:
    """A copy of a model with another norm."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:8] *= 2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def exchange(llm: LLM) -> Exchange:
    params = SamplingParams(max_tokens=24, temperature=0.9, seed=4, deterministic=True, ignore_eos=True)
    result = llm.generate([[5, 6, 7]], params)[0]
    assert result.receipt is not None
    return {
        "path": "/v1/completions",
        "request": {"seed": 4},
        "texts": [result.text],
        "receipt": result.receipt,
    }


@pytest.fixture(scope="module")
def recorded(tiny_llama: Path) -> Exchange:
    with LLM(str(tiny_llama)) as llm:
        return exchange(llm)


def test_a_changed_weight_is_a_changed_model(recorded: Exchange, tiny_llama: Path, tmp_path: Path) -> None:
    with LLM(str(changed_weight(tiny_llama, tmp_path / "changed"))) as llm:
        found = exchange(llm)
    lines, notes = describe_differences([recorded], [found], str)
    text = "\n".join(lines)
    assert "the engine or the model changed, so its answers may:\n        weights" in text
    assert re.search(
        r"the first token that differs is number \d+ of choice 0:\n.*recorded: .*, logprob -", text
    )
    assert not notes


def test_answers_to_the_same_requests_belong_together(recorded: Exchange) -> None:
    one, other = recorded, {**recorded, "request": {"seed": 5}}
    assert describe_differences([one, other], [other, one], str) == ([], [])
    lines, _ = describe_differences([one, one], [one, one, other], str)
    assert lines[0] == "answer 3 was not recorded:"
    lines, _ = describe_differences([one, other], [other], str)
    assert lines[0] == "answer 2 was recorded, but not asked for now:"
