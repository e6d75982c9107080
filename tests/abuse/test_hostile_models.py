"""Model files that are made to hang the server: refused, or served within limits."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.serving import Server, serving
from support.tiny import tiny_model

LOAD_SECONDS, ANSWER_SECONDS = 40.0, 15.0
PROMPTS = ("a" * 60, "x" * 40, "the dog")


def backtracking_pattern(folder: Path) -> Path:
    """A tokenizer whose pattern needs exponential time for a run of one letter."""
    pattern = {
        "type": "Split",
        "pattern": {"Regex": "(a|a|aa)+$|(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }

    def edit(tokenizer: dict[str, Any]) -> None:
        steps = [pattern, tokenizer["pre_tokenizer"]]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    return _with_tokenizer(folder, edit)


def doubling_replacements(folder: Path) -> Path:
    """A tokenizer whose normalizer doubles the text forty times."""
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}

    def edit(tokenizer: dict[str, Any]) -> None:
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [double] * 40}

    return _with_tokenizer(folder, edit)


def many_positions(folder: Path) -> Path:
    """A configuration with 16 million positions."""
    model = tiny_model(folder / "positions")
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 16_000_000}))
    return model


HOSTILE_MODELS: dict[str, Callable[[Path], Path]] = {
    "backtracking pattern": backtracking_pattern,
    "doubling replacements": doubling_replacements,
    "16 M positions": many_positions,
}


def _with_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    model = tiny_model(folder / "tokenizer")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    edit(tokenizer)
    path.write_text(json.dumps(tokenizer))
    return model


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_MODELS)
def test_hostile_model_does_not_hang_the_server(name: str, tmp_path: Path) -> None:
    with serving(HOSTILE_MODELS[name](tmp_path), ready=False) as server:
        is_ready = wait(server)
        if not is_ready:
            assert server.process.returncode == 2 and "Traceback" not in server.text
            return
        for prompt in PROMPTS:
            response = httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": prompt, "max_tokens": 2},
                timeout=ANSWER_SECONDS,
            )
            assert response.status_code in (200, 400), response.text
            assert response.status_code == 200 or set(response.json()["error"]) == {
                "message",
                "type",
                "param",
                "code",
            }
        assert "panic" not in server.text and "Traceback" not in server.text


def wait(server: Server) -> bool:
    """Wait until the server is ready or has refused the model."""
    until = time.monotonic() + LOAD_SECONDS
    while server.process.poll() is None:
        if "Ready after" in server.text:
            server.wait_listening()
            return True
        assert time.monotonic() < until, f"neither ready nor refused:\n{server.text}"
        time.sleep(0.05)
    return False
