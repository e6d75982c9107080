"""Checkpoints: the tensors of a decoder by their Hugging Face names, whatever the file format.

`open_checkpoint` opens a folder or a GGUF file. An open checkpoint is complete: it has every tensor
its configuration needs (`expected_tensors`) in its shape. A file that lacks any is refused before a
weight is read. Opening one imports no numpy, so that a wrong model is refused early.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import BadWeights, ModelNotFound
from holdfast.models.config import Block, DecoderConfig

if TYPE_CHECKING:
    from holdfast.numerics.arrays import Tensor

Shape = tuple[int, ...]

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_MAX_LISTED = 6


@dataclass(frozen=True)
class RawTensor:
    """A stored tensor: its format ("BF16", "Q4_1") and bytes, rows in Hugging Face's order."""

    format: str
    data: memoryview


class TensorSource(Protocol):
    """Tensors by name: the part of a `Checkpoint` that loading needs."""

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str) -> "Tensor":
        """Return the tensor as stored, or in fp32 if quantised. Those of a file are arrays of numpy.

        The tensor may share memory with the mapped file: do not write to it.
        """


class Checkpoint(TensorSource, Protocol):
    """The tensors of one decoder, by their Hugging Face names: exactly those that `config` needs, in the
    order of a forward pass. Tied embeddings have no `lm_head.weight`."""

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def path(self) -> Path: ...

    def raw(self, name: str) -> RawTensor:
        """Return the stored bytes, unrounded, for digests. Thread-safe."""

    def release(self) -> None:
        """Give the pages of a mapped file back to the system, after its tensors were copied or hashed. Until
        then they count as memory of this process. A later read maps them again."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder or a .gguf file."""
    if path.is_dir():
        return _open_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if path.exists():
        raise ModelNotFound(f"{path} is not a model: expected a folder or a .gguf file")
    raise ModelNotFound(f"there is no {path}")


def _open_folder(folder: Path) -> Checkpoint:
    from holdfast.models.safetensors import SafetensorsCheckpoint

    gguf_file = find_gguf(folder)
    return SafetensorsCheckpoint(folder) if gguf_file is None else _open_gguf(gguf_file)


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file that is a folder's model, with its tokenizer; None if safetensors are."""
    gguf_files = sorted(folder.glob("*.gguf"))
    if not gguf_files or any(folder.joinpath(name).is_file() for name in (SINGLE_FILE, INDEX_FILE)):
        return None
    if len(gguf_files) > 1:
        names = ", ".join(each.name for each in gguf_files)
        raise ModelNotFound(f"{folder} contains several GGUF files ({names}); give the path of one of them")
    return gguf_files[0]


def _open_gguf(path: Path) -> Checkpoint:
    from holdfast.models.gguf.checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor, in the order of a forward pass."""
    embedding = (config.vocab_size, config.hidden_size)
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config, layer).items():
            tensors[f"model.layers.{layer}.{name}"] = shape
    tensors["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = embedding
    return tensors


@dataclass(frozen=True)
class NormNames:
    """The names of a layer's norms by role; None: the layer has no such norm.

    input and post: before attention and before the MLP. attention and mlp: of what they add to the
    residual.
    """

    input: str | None
    attention: str | None
    post: str | None
    mlp: str | None


_INPUT, _POST = "input_layernorm.weight", "post_attention_layernorm.weight"
_PRE_MLP, _POST_MLP = "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"
NORM_NAMES: Mapping[Block, NormNames] = {
    "pre": NormNames(_INPUT, None, _POST, None),
    "sandwich": NormNames(_INPUT, _POST, _PRE_MLP, _POST_MLP),
    "post": NormNames(None, _POST, None, _POST_MLP),
    "parallel": NormNames(_INPUT, None, None, None),
}


def projection_names(config: DecoderConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the stored tensors that make up qkv and gate_up, without ".weight"."""
    if config.fused_projections:
        return ("self_attn.qkv_proj",), ("mlp.gate_up_proj",)
    return tuple(f"self_attn.{each}_proj" for each in "qkv"), tuple(
        f"mlp.{one}" for one in inner_names(config)
    )


def inner_names(config: DecoderConfig) -> tuple[str, ...]:
    """Return the projections before the activation, in a MLP and in an expert."""
    return ("gate_proj", "up_proj") if config.num_gates else ("up_proj",)


def expert_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Router, experts and shared expert of a layer."""
    hidden = config.hidden_size
    router = f"mlp.{router_name(config)}"
    tensors: dict[str, Shape] = {f"{router}.weight": (config.num_experts, hidden)}
    if config.router_bias:
        tensors[f"{router}.bias"] = (config.num_experts,)
    if config.expert_bias:
        tensors["mlp.expert_bias"] = (config.num_experts,)
    sizes = {f"mlp.experts.{number}": config.expert_size for number in range(config.num_experts)}
    if config.shared_expert_size:
        sizes["mlp.shared_expert"] = config.shared_expert_size
        if config.shared_expert_gate:
            tensors["mlp.shared_expert_gate.weight"] = (1, hidden)
    for name, inner in sizes.items():
        shapes: dict[str, Shape] = dict.fromkeys(inner_names(config), (inner, hidden))
        for kind, shape in (shapes | {"down_proj": (hidden, inner)}).items():
            tensors[f"{name}.{kind}.weight"] = shape
            if config.mlp_bias:
                tensors[f"{name}.{kind}.bias"] = shape[:1]
    return tensors


def router_name(config: DecoderConfig) -> str:
    return "router" if config.interleaved_experts else "gate"


def _layer_tensors(config: DecoderConfig, layer: int) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    has_experts, sizes = config.has_experts(layer), config.mixer_sizes(layer)
    attends = config.has_attention(layer)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv, gate_up = projection_names(config)
    gated = 2 if config.gated_attention else 1
    qkv_sizes, gate_up_sizes = [gated * queries, keys, keys], [inner] * (1 + config.num_gates)
    if config.fused_projections:
        qkv_sizes, gate_up_sizes = [sum(qkv_sizes)], [sum(gate_up_sizes)]
    mlp: tuple[tuple[str, Shape, bool], ...] = (
        *((name, (size, hidden), config.mlp_bias) for name, size in zip(gate_up, gate_up_sizes, strict=True)),
        ("mlp.down_proj", (hidden, inner), config.mlp_bias),
    )
    attention: tuple[tuple[str, Shape, bool], ...] = (
        *((name, (size, hidden), config.qkv_bias) for name, size in zip(qkv, qkv_sizes, strict=True)),
        ("self_attn.o_proj", (hidden, queries), config.o_bias),
    )
    linears = (*(attention if attends else ()), *(mlp if config.has_mlp(layer) and not has_experts else ()))
    norms = NORM_NAMES[config.block_at(layer)]
    tensors: dict[str, Shape] = {} if norms.input is None else {norms.input: (hidden,)}
    for name, shape, has_bias in linears:
        tensors[f"{name}.weight"] = shape
        if has_bias:
            tensors[f"{name}.bias"] = shape[:1]
    if sizes is not None:
        tensors |= sizes.tensors(hidden)
    if config.qk_norm and attends:
        is_whole = config.whole_qk_norm
        tensors["self_attn.q_norm.weight"] = (queries if is_whole else config.head_dim,)
        tensors["self_attn.k_norm.weight"] = (keys if is_whole else config.head_dim,)
    if config.attention_sinks:
        tensors["self_attn.sinks"] = (config.num_heads,)
    of_mlp = (norms.post, norms.mlp) if config.has_mlp(layer) else ()
    for norm in (norms.attention, *of_mlp):
        if norm is not None:
            tensors[norm] = (hidden,)
    return tensors | (expert_tensors(config) if has_experts else {})


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
