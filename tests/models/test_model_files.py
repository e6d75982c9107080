"""The list of a model's files is complete, and a file may not change while a model is loaded."""

import ast
import os
import re
import shutil
import threading
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.config import EngineConfig
from holdfast.engine.start.builder import build
from holdfast.errors import BadWeights
from holdfast.models.model_files import MODEL_FILES, ModelFiles
from holdfast.receipts import engine_fingerprint

NAMES_A_FILE = re.compile(r"[\w.*-]+\.(json|jinja|safetensors|gguf|model|txt)")
DECIDES_NOTHING = {
    "tokenizer.model",  # named in an error
    "published.json",  # our own: sizes of known models
    "families.json",  # our own: what configurations leave out
    "*.json",  # fetched from a hub
    "*.txt",
    "*.jinja",
}


def test_every_file_that_is_read_is_listed() -> None:
    """The names of files in the code that reads models."""
    root = Path(holdfast.__file__).parent
    sources = [one for name in ("models", "text", "thinking") for one in (root / name).rglob("*.py")]
    strings = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {one for one in strings if NAMES_A_FILE.fullmatch(one)} - DECIDES_NOTHING
    assert {"config.json", "tokenizer.json", "thinking.safetensors"} <= named
    assert [one for one in named if not any(fnmatch(one, known) for known in MODEL_FILES)] == []


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" ")


@pytest.mark.parametrize("change", [replace, append, Path.unlink])
def test_change_of_a_listed_file_is_seen(change: Any, tmp_path: Path) -> None:
    for name in ("config.json", "README.md", "a.gguf"):
        (tmp_path / name).write_text("{}")
    files = ModelFiles.of(tmp_path)
    (tmp_path / "README.md").unlink()
    files.require_unchanged()
    change(tmp_path / "a.gguf")
    with pytest.raises(BadWeights, match=r"a\.gguf changed while the model was loaded"):
        files.require_unchanged()


CONFIG: dict[str, Any] = {"determinism": "off", "dtype": "fp32", "max_pass_tokens": 64, "kv_memory": "1MiB"}


def test_file_replaced_while_it_is_loaded_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))

    def show(stage: str, done: int, total: int) -> None:
        if stage == "Loading weights" and done == 2:
            replace(folder / "model.safetensors")

    with pytest.raises(BadWeights, match=r"model\.safetensors changed"):
        build(EngineConfig(str(folder), **CONFIG), show)


def test_file_replaced_before_it_is_hashed_has_no_fingerprint(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    digest, replaced = engine_fingerprint.digest_weights, threading.Event()

    def digest_weights(*given: Any) -> str:
        assert replaced.wait(60)
        return digest(*given)

    monkeypatch.setattr(engine_fingerprint, "digest_weights", digest_weights)
    engine = build(EngineConfig(str(folder), **CONFIG))
    replace(folder / "model.safetensors")
    replaced.set()
    with pytest.raises(BadWeights, match=r"model\.safetensors changed"):
        _ = engine.fingerprint
