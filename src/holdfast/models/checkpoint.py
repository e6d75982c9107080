"""Weights on disk, whatever their format: what they are called, how large they are, and the numbers.

A checkpoint that could be opened is complete: every tensor its configuration needs is there in its shape.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from holdfast.errors import ModelNotFound
from holdfast.models.config import DecoderConfig


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it is stored: the format's name ("BF16", "Q4_1") and its bytes, rows in Hugging Face's order."""

    kind: str
    data: memoryview


class Checkpoint(Protocol):
    """The tensors of one decoder, by their Hugging Face names. Tied embeddings have no `lm_head.weight`."""

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def path(self) -> Path: ...

    def names(self) -> tuple[str, ...]:
        """Exactly the tensors `config` needs, in the order a pass needs them."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, rounded once to `dtype`; without one, as stored, or fp32 if stored quantised. What is read from a file
        is on the CPU.

        It may share memory with the file: read it, never write to it.
        """
        ...

    def raw(self, name: str) -> RawTensor:
        """The stored bytes, unrounded, for whoever must tell two checkpoints apart. May be called from any thread."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder or a .gguf file."""
    if path.is_dir():
        return _open_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if path.exists():
        raise ModelNotFound(f"{path} is no model: expected a folder or a .gguf file")
    raise ModelNotFound(f"there is no {path}")


def _open_folder(folder: Path) -> Checkpoint:
    from holdfast.models.safetensors import INDEX, SINGLE, SafetensorsCheckpoint

    gguf_files = sorted(folder.glob("*.gguf"))
    if not gguf_files or folder.joinpath(SINGLE).is_file() or folder.joinpath(INDEX).is_file():
        return SafetensorsCheckpoint(folder)
    if len(gguf_files) > 1:
        names = ", ".join(each.name for each in gguf_files)
        raise ModelNotFound(f"{folder} holds several GGUF files ({names}); name the one you want")
    return _open_gguf(gguf_files[0])


def _open_gguf(path: Path) -> Checkpoint:
    from holdfast.models.gguf.checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)
