"""The code blocks of docs/python-api.md run, in order, on a tiny model."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LLM, AsyncLLM

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "python-api.md"
SMALL: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 8}


def blocks() -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    return ["\n" * text[: one.start(1)].count("\n") + one[1] for one in found]  # lines as in the file


def test_code_blocks_run(
    tiny_llama: Path,
    auto_llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load: Callable[..., AsyncLLM] = partial(AsyncLLM, str(tiny_llama), **SMALL)
    monkeypatch.setattr(holdfast, "LLM", lambda: auto_llm, raising=False)
    monkeypatch.setattr(holdfast, "AsyncLLM", load, raising=False)
    names: dict[str, Any] = {"__name__": "document"}
    found = blocks()
    assert len(found) >= 10
    for block in found:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert "prompts[1]: prompt must be text, not int" in capsys.readouterr().out
    assert not auto_llm.engine.has_requests


def test_every_public_name_is_in_the_reference() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [name for name in holdfast.__all__ if not name.startswith("_") and name not in text]
    methods = [name for name in vars(holdfast.LLM) if not name.startswith("_") and name != "from_config"]
    missing += [name for name in methods if name not in text]
    assert missing == []
