"""Where torch is not installed: models of every kind, the server, replay and the lines that say what needs it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.answer_models import answer, digest
from support.recorded_models import recorded_model
from support.serving import serving
from support.thinking_models import thinker_folder
from support.tiny import FAMILIES, random_config, tiny_gguf, tiny_model

SUPPORT = Path(__file__).parents[1] / "support"
WITHOUT_TORCH = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(SUPPORT / "no_torch"), *filter(None, sys.path)]),
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
RECORDED = Path(__file__).with_suffix(".json")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [
        tiny_model(folder / "llama"),
        tiny_model(folder / "gpt_oss", "gpt_oss"),
        tiny_gguf(folder / "llama.Q4_K.gguf", "llama", "Q4_K", **WIDE),
        thinker_folder(folder / "think"),
    ]


def run(*command: str, environment: dict[str, str] = WITHOUT_TORCH) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


def answers(models: list[Path], what: str = "answer") -> dict[str, Any]:
    """Return what `support/answer_models.py` prints where torch is not installed."""
    done = run(str(SUPPORT / "answer_models.py"), what, *map(str, models))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for one in found["answers"].values():
        assert not one.pop("has_torch")
        assert all("(None, " in text for text in one["answers"]), "no errors"
    return found


def recorded_bits(models: list[Path]) -> dict[str, Any]:
    found = answers(models, "stress")
    bits = {
        Path(model).name: [digest(text) for text in (*one["answers"], one["embedding"])]
        for model, one in found["answers"].items()
    }
    return {"answers": bits, "stress": found["stress"]}


def test_every_family_and_feature_has_the_recorded_bits(tmp_path: Path) -> None:
    """On every CPU. `python tests/engine/test_without_torch.py` records them; if no bit was to change, none may."""
    recorded = json.loads(RECORDED.read_text())
    models = [recorded_model(tmp_path / name, config) for name, config in recorded.pop("models").items()]
    assert recorded_bits(models) == recorded


def test_answers_are_those_of_a_process_with_torch(models: list[Path]) -> None:
    expected = {str(model): answer(str(model)) for model in models}
    assert all(one.pop("has_torch") for one in expected.values())
    assert answers(models)["answers"] == expected


def test_an_engine_does_not_import_an_installed_torch(models: list[Path]) -> None:
    done = run(str(SUPPORT / "answer_models.py"), "answer", str(models[0]), environment=dict(os.environ))
    assert json.loads(done.stdout)["answers"][str(models[0])]["has_torch"] is False


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


def _record() -> None:
    """Record the configurations of transformers' classes, and the bits of their models."""
    configs = {family: random_config(family).to_diff_dict() for family in FAMILIES if family != "gpt_oss"}
    configs = {family: {**one, "transformers_version": None} for family, one in configs.items()}
    with tempfile.TemporaryDirectory() as folder:
        models = [recorded_model(Path(folder) / family, config) for family, config in configs.items()]
        RECORDED.write_text(json.dumps({"models": configs, **recorded_bits(models)}, indent=1) + "\n")


if __name__ == "__main__":
    _record()
