"""Where torch is not installed: models of every kind, the server, replay and the lines that say what needs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.answer_models import answer
from support.serving import serving
from support.thinking_models import thinker_folder
from support.tiny import tiny_gguf, tiny_model

SUPPORT = Path(__file__).parents[1] / "support"
WITHOUT_TORCH = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(SUPPORT / "no_torch"), *filter(None, sys.path)]),
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    families = ("llama", "gpt_oss", "qwen3_next", "cohere2")
    return [
        *(tiny_model(folder / family, family) for family in families),
        tiny_gguf(folder / "llama.Q4_K.gguf", "llama", "Q4_K", **WIDE),
        thinker_folder(folder / "think"),
    ]


def run(*command: str, environment: dict[str, str] = WITHOUT_TORCH) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


def test_answers_are_those_of_a_process_with_torch(models: list[Path]) -> None:
    without = run(str(SUPPORT / "answer_models.py"), *map(str, models))
    assert without.returncode == 0, without.stderr
    found, expected = json.loads(without.stdout), {str(model): answer(str(model)) for model in models}
    assert all(one.pop("has_torch") for one in expected.values())
    assert not any(one.pop("has_torch") for one in found.values())
    assert found == expected
    assert all("(None, " in text for one in found.values() for text in one["answers"]), "no errors"


def test_an_engine_does_not_import_an_installed_torch(models: list[Path]) -> None:
    done = run(str(SUPPORT / "answer_models.py"), str(models[0]), environment=dict(os.environ))
    assert json.loads(done.stdout)[str(models[0])]["has_torch"] is False


def test_server_answers_and_its_receipt_is_replayed(models: list[Path], tmp_path: Path) -> None:
    with serving(models[0], "--kernels", "c", environment=WITHOUT_TORCH) as server:
        asked = {
            "model": "llama",
            "prompt": "the coin",
            "max_tokens": 6,
            "seed": 3,
            "deterministic": True,
            "temperature": 0.7,
        }
        posted = server.post("/v1/completions", asked).json()
        assert posted["choices"][0]["finish_reason"] == "length"
    receipt, prompt = tmp_path / "receipt.json", ("the coin", "--raw", "-m", str(models[0]))
    options = (
        "-n",
        "6",
        "--seed",
        "3",
        "--deterministic",
        "--kernels",
        "c",
        "--receipt",
        str(receipt),
        "--json",
    )
    generated = run("-m", "holdfast", "generate", *prompt, *options)
    assert generated.returncode == 0, generated.stderr
    assert json.loads(generated.stdout)["text"] == posted["choices"][0]["text"]
    replayed = run("-m", "holdfast", "replay", str(receipt))
    assert replayed.returncode == 0, replayed.stderr


@pytest.mark.parametrize("options", [("--kernels", "torch"), ("--device", "cuda")])
def test_what_needs_torch_says_so_in_a_line(models: list[Path], options: tuple[str, str]) -> None:
    done = run("-m", "holdfast", "generate", "x", "-m", str(models[0]), *options)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "pip install 'holdfast[" in done.stderr and done.stderr.strip().count("\n") == 0
