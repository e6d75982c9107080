"""Where safetensors hold the tensors of one expert, if the experts of a layer, or gate and up, are stored together.

    gate_up_proj           [experts, 2 I, hidden]             gate, then up
    down_proj              [experts, hidden, I]

Granite's shared expert, or the MLP in its place:

    shared_expert.gate_up_proj.weight    [2 I, hidden]        gate, then up
    shared_expert.down_proj.weight       [hidden, I]

gpt-oss, gate and up in turns:

    gate_up_proj           [experts, hidden, 2 I]
    gate_up_proj_bias      [experts, 2 I]
    down_proj              [experts, I, hidden]
    down_proj_bias         [experts, hidden]

gpt-oss in MXFP4, for both:

    gate_up_proj_blocks    [experts, 2 I, hidden / 32, 16]    uint8
    gate_up_proj_scales    [experts, 2 I, hidden / 32]        uint8
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import UnsupportedModel
from holdfast.models.checkpoint import Shape
from holdfast.models.config import DecoderConfig
from holdfast.models.gguf.dequantize import dequantize_mxfp4
from holdfast.numerics.arrays import Tensor

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_SHARED = re.compile(r"(.*\.mlp)\.(?:shared_expert\.)?(gate|up|down)_proj\.weight")
_MXFP4_BLOCK = 32
MXFP4_SUFFIXES = ("_blocks", "_scales")


@dataclass(frozen=True)
class ExpertPart:
    """A tensor of one expert. sources: the tensors of all experts with their shapes: one, or MXFP4's
    blocks and scales. at: the expert's part of them."""

    sources: Mapping[str, Shape]
    at: tuple[int | slice, ...]
    is_transposed: bool = False

    @property
    def is_mxfp4(self) -> bool:
        return len(self.sources) == 2

    def read(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the tensor of the expert; MXFP4 as fp32."""
        parts = [source[self.at] for source in sources]
        if self.is_mxfp4:
            return dequantize_mxfp4(parts[0].numpy(), parts[1].numpy())
        return parts[0].T if self.is_transposed else parts[0]


def find_expert_part(
    name: str, shape: Shape, config: DecoderConfig, stored: Container[str]
) -> ExpertPart | None:
    """Return where the tensor of this name is, or None if it is stored alone or belongs to no expert."""
    match = _EXPERT.fullmatch(name)
    if match is None:
        return None if name in stored else _find_shared_part(name, shape, stored)
    prefix, number, kind, suffix = match[1], int(match[2]), match[3], match[4]
    source = f"{prefix}.down_proj" if kind == "down" else f"{prefix}.gate_up_proj"
    outputs = shape[0] if kind == "down" else 2 * shape[0]
    if not config.interleaved_experts:
        start = shape[0] if kind == "up" else 0
        whole = {source: (config.num_experts, outputs, *shape[1:])}
        is_alone = name in stored or source not in stored
        return None if is_alone else ExpertPart(whole, (number, slice(start, start + shape[0])))
    rows = {"gate": slice(0, None, 2), "up": slice(1, None, 2), "down": slice(None)}[kind]
    if suffix == "bias":
        return ExpertPart({f"{source}_bias": (config.num_experts, outputs)}, (number, rows))
    if f"{source}_blocks" in stored or f"{source}_scales" in stored:
        return ExpertPart(_mxfp4_sources(source, (config.num_experts, outputs, shape[1])), (number, rows))
    whole = {source: (config.num_experts, shape[1], outputs)}
    return ExpertPart(whole, (number, slice(None), rows), is_transposed=True)


def _find_shared_part(name: str, shape: Shape, stored: Container[str]) -> ExpertPart | None:
    match = _SHARED.fullmatch(name)
    kind = "" if match is None else match[2]
    source = (
        ""
        if match is None
        else f"{match[1]}.shared_expert.{'down' if kind == 'down' else 'gate_up'}_proj.weight"
    )
    if source not in stored:
        return None
    if kind == "down":
        return ExpertPart({source: shape}, (slice(None),))
    start = shape[0] if kind == "up" else 0
    return ExpertPart({source: (2 * shape[0], *shape[1:])}, (slice(start, start + shape[0]),))


def _mxfp4_sources(source: str, shape: Shape) -> dict[str, Shape]:
    num_experts, outputs, inputs = shape
    if inputs % _MXFP4_BLOCK:
        raise UnsupportedModel(
            f"{source} is stored in MXFP4 blocks of {_MXFP4_BLOCK} numbers, which its {inputs} inputs are no multiple of"
        )
    blocks = (num_experts, outputs, inputs // _MXFP4_BLOCK)
    return {f"{source}_blocks": (*blocks, 16), f"{source}_scales": blocks}
