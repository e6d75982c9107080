"""Embeddings as a client gets them. Between processes they are bytes, fp32 in little-endian order."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from holdfast.core.results import Determinism, Result, Stats
from holdfast.errors import make_error


@dataclass(frozen=True)
class EmbeddingOutput:
    """An embedding, its fp32 values as Python floats."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class EmbeddingResult(Sequence[float]):
    """One prompt's embedding: `outputs.embedding`, as in vLLM, or the result itself as a sequence."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput
    determinism: Determinism
    stats: Stats

    @property
    def embedding(self) -> list[float]:
        return self.outputs.embedding

    @property
    def finished(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.outputs.embedding)

    @overload
    def __getitem__(self, at: int) -> float: ...

    @overload
    def __getitem__(self, at: slice) -> list[float]: ...

    def __getitem__(self, at: int | slice) -> float | list[float]:
        return self.outputs.embedding[at]


def embedding_result(request_id: int, result: Result) -> EmbeddingResult:
    """Return the embedding in a request's result. Raise the error it ended with, if any."""
    if result.error is not None:
        raise make_error(result.error_code or "", result.error)
    assert result.embedding is not None
    output = EmbeddingOutput(unpack_embedding(result.embedding))
    ids = result.prompt_token_ids
    return EmbeddingResult(str(request_id), ids, output, result.determinism, result.stats)


def unpack_embedding(embedding: bytes) -> list[float]:
    """Return the values of an embedding."""
    return list(struct.unpack(f"<{len(embedding) // 4}f", embedding))
