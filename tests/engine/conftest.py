"""Engines on a tiny model, one of each kind a module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.llm import LLM

SMALL: dict[str, Any] = {"dtype": "fp32", "max_pass_rows": 64, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def auto_llm(tiny_llama: Path) -> LLM:
    return LLM(str(tiny_llama), **SMALL)


@pytest.fixture(scope="module")
def verify_llm(tiny_llama: Path) -> LLM:
    return LLM(str(tiny_llama), determinism="verify", **SMALL)


@pytest.fixture(params=["auto", "verify"])
def llm(request: pytest.FixtureRequest, auto_llm: LLM, verify_llm: LLM) -> Iterator[LLM]:
    """An idle engine before the test, and an idle, sound one after it."""
    chosen = auto_llm if request.param == "auto" else verify_llm
    assert not chosen.engine.has_work
    yield chosen
    assert not chosen.engine.has_work
    chosen.engine.check()
    assert chosen.engine.scheduler.pool.num_held == 0
