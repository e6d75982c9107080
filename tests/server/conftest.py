"""Servers that several tests share: four of tiny models, one of the default model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.receipts.signing import SigningKey
from support.serving import Server, serving
from support.tiny import tiny_model


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
def deterministic_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model whose requests are deterministic unless they say otherwise. It takes batches."""
    options = ("--max-num-seqs", "16", "--served-model-name", "tiny")
    folder = tmp_path_factory.mktemp("files")
    with serving(tiny_llama, "--deterministic", "--files-dir", str(folder), *options) as server:
        yield server


@pytest.fixture(scope="session")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A random model with a context that is long enough for tools.

    Its template does not support them.
    """
    model = tiny_model(tmp_path_factory.mktemp("tools") / "llama", max_position_embeddings=2048)
    with serving(model, "--max-num-seqs", "4", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="session")
def thinking_server(thinking_model: Path) -> Iterator[Server]:
    with serving(thinking_model, "--max-num-seqs", "8", "--served-model-name", "thinker") as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server() -> Iterator[Server]:
    """What `make run` starts, with fewer batch sizes to certify."""
    with serving(None, "--max-pass-tokens", "64") as server:
        yield server
