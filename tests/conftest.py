"""Shared set-up: one cache of certificates and kernels for the whole run, and tiny models made once."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_dir() -> Iterator[Path]:
    """The session's own HOLDFAST_CACHE_DIR, so that no test meets certificates of an earlier run."""
    before = os.environ.get("HOLDFAST_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="holdfast-cache-") as folder:
        os.environ["HOLDFAST_CACHE_DIR"] = folder
        yield Path(folder)
    if before is None:
        del os.environ["HOLDFAST_CACHE_DIR"]
    else:
        os.environ["HOLDFAST_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama on disk, fp32."""
    from support.tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny") / "llama")
