"""The documentation's Python runs on a tiny model: a page's blocks, one after the other."""

import ast
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast import LLM, AsyncLLM, SamplingParams
from support.documents import ENGINE_PAGES, ROOT, Block, blocks_of, is_python_run_elsewhere

SMALL: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 8}


def python_of(page: str) -> list[Block]:
    return blocks_of(ROOT / page, "python")


@pytest.fixture
def tiny_models(tiny_llama: Path, auto_llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever model a page names is the tiny one. The working folder is empty."""

    def load(*_: str, **settings: Any) -> LLM:
        return LLM(str(tiny_llama), **SMALL, **settings) if settings else auto_llm

    monkeypatch.setattr(holdfast, "LLM", load, raising=False)
    monkeypatch.setattr(holdfast, "AsyncLLM", partial(AsyncLLM, str(tiny_llama), **SMALL), raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("tiny_models")
@pytest.mark.parametrize("page", ENGINE_PAGES)
def test_code_blocks_run(page: str, auto_llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "document"}
    found = [one for one in python_of(page) if not is_python_run_elsewhere(one)]
    assert found
    for block in found:
        code = "\n" * block.line + block.text  # lines as in the file
        exec(compile(code, page, "exec"), names)
    printed = capsys.readouterr().out
    assert ("prompts[1]: prompt must be text, not int" in printed) is (page == "docs/python-api.md")
    assert not auto_llm.engine.has_requests
    llm = names.get("llm", auto_llm)
    if llm is not auto_llm:
        llm.close()


@pytest.mark.usefixtures("tiny_models")
def test_rollouts_for_a_trainer_run(tiny_llama: Path) -> None:
    """The trainer itself is driven by `make clients`."""
    (block,) = (one for one in python_of("docs/recipes.md") if "GRPOTrainer" in one.text)
    (function,) = (one for one in ast.parse(block.text).body if isinstance(one, ast.FunctionDef))
    names: dict[str, Any] = {"LLM": holdfast.LLM, "SamplingParams": SamplingParams}
    exec(ast.unparse(function).replace("max_tokens=256", "max_tokens=8"), names)
    trainer = SimpleNamespace(
        save_model=partial(shutil.copytree, tiny_llama), state=SimpleNamespace(global_step=3)
    )
    done = names[function.name](["a", "a"], trainer)
    assert done["prompt_ids"][0] == done["prompt_ids"][1]
    assert done["completion_ids"][0] != done["completion_ids"][1]
    for ids, logprobs in zip(done["completion_ids"], done["logprobs"], strict=True):
        assert len(ids) == len(logprobs) > 0 and all(one <= 0 for one in logprobs)


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    missing = [name for name in holdfast.__all__ if not name.startswith("_") and name not in text]
    methods = [name for name in vars(holdfast.LLM) if not name.startswith("_") and name != "from_config"]
    missing += [name for name in methods if name not in text]
    assert missing == []
