"""Servers that several tests share: one of a tiny model, one of the default model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import Server, serving


@pytest.fixture(scope="session")
def tiny_server(tiny_llama: Path) -> Iterator[Server]:
    """A tiny random model; nothing of what it says makes sense, and all of it is fast."""
    with serving(tiny_llama, "--max-num-seqs", "16", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server() -> Iterator[Server]:
    """What `make run` starts."""
    with serving(None) as server:
        yield server
