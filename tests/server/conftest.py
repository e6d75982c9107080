"""Servers that several tests share: two of a tiny model, one of the default model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.receipts.signing import SigningKey
from support.serving import Server, serving


@pytest.fixture(scope="session")
def receipt_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private key that signs the tiny server's receipts."""
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    SigningKey.generate().write(path)
    return path


@pytest.fixture(scope="session")
def tiny_server(tiny_llama: Path, receipt_key: Path) -> Iterator[Server]:
    """A tiny random model; nothing of what it says makes sense, and all of it is fast."""
    with serving(
        tiny_llama, "--max-num-seqs", "16", "--served-model-name", "tiny", "--receipt-key", str(receipt_key)
    ) as server:
        yield server


@pytest.fixture(scope="session")
def deterministic_server(tiny_llama: Path) -> Iterator[Server]:
    """A tiny model whose requests are deterministic unless they say otherwise."""
    with serving(
        tiny_llama, "--deterministic", "--max-num-seqs", "16", "--served-model-name", "tiny"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server() -> Iterator[Server]:
    """What `make run` starts."""
    with serving(None) as server:
        yield server
