"""Checkpoints: the tensors of a decoder by their Hugging Face names, whatever the file format.

`open_checkpoint` opens a folder or a GGUF file. An open checkpoint is complete: it has every tensor
its configuration needs (`expected_tensors`) in its shape. A file that lacks any is refused before a
weight is read. Opening one imports no torch, so that a wrong model is refused early.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import BadWeights, ModelNotFound
from holdfast.models.config import DecoderConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, ...]

_MAX_LISTED = 6


@dataclass(frozen=True)
class RawTensor:
    """A stored tensor: its format ("BF16", "Q4_1") and bytes, rows in Hugging Face's order."""

    format: str
    data: memoryview


class Checkpoint(Protocol):
    """The tensors of one decoder, by their Hugging Face names. Tied embeddings have no
    `lm_head.weight`."""

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def path(self) -> Path: ...

    def names(self) -> tuple[str, ...]:
        """Exactly the tensors `config` needs, in the order of a forward pass."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, dtype: "torch.dtype | None" = None) -> "Tensor":
        """The tensor, rounded once to `dtype`; without a dtype as stored, or fp32 if quantised.
        Tensors of a file are on the CPU.

        The tensor may share memory with the mapped file: do not write to it.
        """
        ...

    def raw(self, name: str) -> RawTensor:
        """The stored bytes, unrounded, for digests. Thread-safe."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder or a .gguf file."""
    if path.is_dir():
        return _open_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if path.exists():
        raise ModelNotFound(f"{path} is not a model: expected a folder or a .gguf file")
    raise ModelNotFound(f"there is no {path}")


def _open_folder(folder: Path) -> Checkpoint:
    from holdfast.models.safetensors import INDEX_FILE, SINGLE_FILE, SafetensorsCheckpoint

    gguf_files = sorted(folder.glob("*.gguf"))
    if not gguf_files or folder.joinpath(SINGLE_FILE).is_file() or folder.joinpath(INDEX_FILE).is_file():
        return SafetensorsCheckpoint(folder)
    if len(gguf_files) > 1:
        names = ", ".join(each.name for each in gguf_files)
        raise ModelNotFound(f"{folder} contains several GGUF files ({names}); give the path of one of them")
    return _open_gguf(gguf_files[0])


def _open_gguf(path: Path) -> Checkpoint:
    from holdfast.models.gguf.checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor, in the order of a forward pass."""
    embedding = (config.vocab_size, config.hidden_size)
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            tensors[f"model.layers.{layer}.{name}"] = shape
    tensors["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = embedding
    return tensors


def _layer_tensors(config: DecoderConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears: tuple[tuple[str, Shape, bool], ...] = (
        ("self_attn.q_proj", (queries, hidden), config.qkv_bias),
        ("self_attn.k_proj", (keys, hidden), config.qkv_bias),
        ("self_attn.v_proj", (keys, hidden), config.qkv_bias),
        ("self_attn.o_proj", (hidden, queries), config.o_bias),
        ("mlp.gate_proj", (inner, hidden), config.mlp_bias),
        ("mlp.up_proj", (inner, hidden), config.mlp_bias),
        ("mlp.down_proj", (hidden, inner), config.mlp_bias),
    )
    tensors: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    for name, shape, has_bias in linears:
        tensors[f"{name}.weight"] = shape
        if has_bias:
            tensors[f"{name}.bias"] = shape[:1]
    if config.qk_norm:
        tensors["self_attn.q_norm.weight"] = tensors["self_attn.k_norm.weight"] = (config.head_dim,)
    tensors["post_attention_layernorm.weight"] = (hidden,)
    return tensors


def require_tensors(
    expected: Mapping[str, Shape], find_shape: Callable[[str], Shape | None], where: str
) -> None:
    """Raise one error that lists the missing tensors and those with another shape."""
    missing: list[str] = []
    misshaped: list[str] = []
    for name, shape in expected.items():
        found = find_shape(name)
        if found is None:
            missing.append(name)
        elif found != shape:
            misshaped.append(f"{name} {list(found)} instead of {list(shape)}")
    faults = [
        f"{what}: {', '.join(names[:_MAX_LISTED])}{_and_more(names)}"
        for what, names in (("missing", missing), ("of another shape", misshaped))
        if names
    ]
    if faults:
        raise BadWeights(
            f"{where} does not contain the model its configuration describes; {'; '.join(faults)}"
        )


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
