"""A folder of safetensors: one file, or an index and its shards, memory-mapped.

Only safetensors files in the folder itself are opened. A pickle can run code and is never loaded.
"""

import json
import logging
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadWeights, ModelNotFound, UnsupportedModel
from holdfast.models.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    RawTensor,
    Shape,
    expected_tensors,
    require_tensors,
)
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.fields import read_json
from holdfast.models.stored_experts import MXFP4_SUFFIXES, ExpertPart, find_expert_part
from holdfast.numerics.arrays import HOST_ARRAYS, DType, Tensor, host, rounded

_log = logging.getLogger(__name__)
# Where the tensors of the language model are: alone, or in a model with images.
_PREFIXES = {
    "model.": "model.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "backbone.": "model.",
}
_MULTI_TOKEN = "mtp."
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,200}\.safetensors")
_MAX_SHARDS = 4096
_DTYPES = {
    "F32": HOST_ARRAYS.float32,
    "F16": HOST_ARRAYS.float16,
    "BF16": HOST_ARRAYS.bfloat16,
    "U8": HOST_ARRAYS.uint8,
}
_READABLE = ("F32", "F16", "BF16")


class _OpenSlice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _OpenFile(Protocol):
    """The methods of safetensors' `safe_open` used here; the library has no types."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _OpenSlice: ...


class _MappedFile:
    """A safetensors file, mapped: its tensors share the file's memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:  # copy-on-write, because torch warns of arrays that are read-only
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        self._start = 8 + int(self._bytes[:8].view("<u8")[0])
        self._entries = json.loads(self._bytes[8 : self._start].tobytes())

    def read(self, name: str) -> Tensor:
        entry = self._entries[name]
        first, last = (self._start + offset for offset in entry["data_offsets"])
        return _numbers(self._bytes[first:last], entry["dtype"]).view(tuple(entry["shape"]))


def _numbers(stored: NDArray[np.uint8], dtype: str) -> Tensor:
    """Return bytes as numbers of a dtype, copied if they are not aligned."""
    wanted = _DTYPES[dtype]
    aligned = stored if stored.ctypes.data % wanted.itemsize == 0 else stored.copy()
    return host(aligned).view(wanted)


# Names of LFM2, of Granite's mixture of experts, of Falcon-H1, of Nemotron-H, and of OLMo Hybrid.
_RENAMED = {
    ".mlp.input_linear.weight": ".mlp.experts.gate_up_proj",
    ".mlp.output_linear.weight": ".mlp.experts.down_proj",
    ".mlp.router.layer.": ".mlp.gate.",
    ".shared_mlp.input_linear.": ".mlp.shared_expert.gate_up_proj.",
    ".shared_mlp.output_linear.": ".mlp.shared_expert.down_proj.",
    "model.embedding_norm.": "model.norm.",
    ".operator_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    "model.final_layernorm.": "model.norm.",
    ".pre_ff_layernorm.": ".post_attention_layernorm.",
    ".feed_forward.gate_proj.": ".mlp.gate_proj.",
    ".feed_forward.up_proj.": ".mlp.up_proj.",
    ".feed_forward.down_proj.": ".mlp.down_proj.",
    ".feed_forward.experts.": ".mlp.experts.",
    ".feed_forward.gate.": ".mlp.gate.",
    ".feed_forward.expert_bias": ".mlp.expert_bias",
    ".feed_forward.w1.": ".mlp.gate_proj.",
    ".feed_forward.w2.": ".mlp.down_proj.",
    ".feed_forward.w3.": ".mlp.up_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".q_layernorm.": ".q_norm.",
    ".k_layernorm.": ".k_norm.",
    "model.embeddings.": "model.embed_tokens.",
    "model.norm_f.": "model.norm.",
    ".shared_experts.": ".shared_expert.",
    ".attention_layer_norm.": ".input_layernorm.",
    ".feedforward_layer_norm.": ".post_attention_layernorm.",
    ".gate.e_score_correction_bias": ".expert_bias",
}
_CONV = re.compile(r"(.+\.linear_attn\.)[qkv](_conv1d\.weight)")
_PART = re.compile(r"model\.layers\.(\d+)\.(norm|mixer)\.(.+)")
# Mixtral's names of experts.
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL_EXPERT = re.compile(r"(experts\.\d+\.)(w[123])(\.weight)$")


class SafetensorsCheckpoint:
    """The weights of a Hugging Face folder, checked against its configuration when opened."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config: DecoderConfig = read_config(folder)
        self._shapes = expected_tensors(self.config)
        shards = _find_shards(folder)
        self._headers = {name: _open_file(folder / name) for name in sorted(set(shards.values()))}
        self._stored = _joined_names({_plain_name(stored): stored for stored in shards}, self.config)
        self._shards = {name: shards[stored] for name, stored in self._stored.items()}
        self._names = {name: frozenset(file.keys()) for name, file in self._headers.items()}
        self._files: dict[str, _MappedFile] = {}  # mapped when a tensor is read
        self._parts = self._find_parts()
        require_tensors(self._stored_shapes(), self._find_shape, str(folder))
        further = [stored for stored in shards if stored.startswith(_MULTI_TOKEN)]
        if further:
            _log.info(
                "%d tensors of layers that predict several tokens are not read, such as %s",
                *(len(further), further[0]),
            )
        self._require_dtypes()

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def tensor(self, name: str, dtype: DType | None = None) -> Tensor:
        """Return the tensor as stored, sharing the file's memory, or rounded to `dtype`."""
        if name not in self._shapes:
            raise KeyError(name)
        part = self._parts.get(name)
        stored = self._read(name) if part is None else part.read([self._read(one) for one in part.sources])
        return rounded(stored, dtype)

    def raw(self, name: str) -> RawTensor:
        """Return the tensor's bytes: in the mapped file, or a copy if they are not together there."""
        part = self._parts.get(name)
        if part is not None and part.is_mxfp4:
            blocks, scales = (self._read(one)[part.at].flatten() for one in part.sources)
            return RawTensor("MXFP4", np.concatenate((blocks, scales)).data)
        format_ = self._dtype(name if part is None else next(iter(part.sources)))
        return RawTensor(
            format_, self.tensor(name).contiguous().view(-1).view(HOST_ARRAYS.uint8).numpy().data
        )

    def release(self) -> None:
        """Drop the maps of the files. A map ends with the last tensor that shares its memory."""
        self._files = {}

    def _read(self, source: str) -> Tensor:
        return self._open(self._shards[source]).read(self._stored[source])

    def _open(self, shard: str) -> _MappedFile:
        """Return the mapped shard. Two threads may both map it, which does no harm."""
        file = self._files.get(shard)
        if file is None:
            file = self._files[shard] = _MappedFile(self.path / shard)
        return file

    def _find_parts(self) -> dict[str, ExpertPart]:
        found = {
            name: find_expert_part(name, shape, self.config, self._shards)
            for name, shape in self._shapes.items()
        }
        return {name: part for name, part in found.items() if part is not None}

    def _stored_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the tensors as they are stored."""
        shapes: dict[str, Shape] = {}
        for name, shape in self._shapes.items():
            shapes |= self._parts[name].sources if name in self._parts else {name: shape}
        return shapes

    def _find_shape(self, name: str) -> Shape | None:
        """Return the stored shape. The convolution of q, k and v may be cut elsewhere: transformers stores thirds."""
        match = _CONV.fullmatch(name)
        if match is None:
            return self._header_shape(name)
        parts = [f"{match[1]}{each}{match[2]}" for each in "qkv"]
        stored, expected = (
            [self._header_shape(part) for part in parts],
            [self._shapes[part] for part in parts],
        )
        rows = [sum(shape[0] for shape in shapes if shape) for shapes in (stored, expected)]
        is_whole = rows[0] == rows[1] and all(shape and shape[1:] == expected[0][1:] for shape in stored)
        return self._shapes[name] if is_whole else self._header_shape(name)

    def _header_shape(self, name: str) -> Shape | None:
        shard = self._shards.get(name)
        if shard is None or self._stored[name] not in self._names[shard]:
            return None
        return tuple(self._headers[shard].get_slice(self._stored[name]).get_shape())

    def _dtype(self, source: str) -> str:
        return self._headers[self._shards[source]].get_slice(self._stored[source]).get_dtype()

    def _require_dtypes(self) -> None:
        for name in self._stored_shapes():
            is_mxfp4 = self.config.interleaved_experts and name.endswith(MXFP4_SUFFIXES)
            stored, expected = self._dtype(name), ("U8",) if is_mxfp4 else _READABLE
            if stored not in expected:
                raise UnsupportedModel(
                    f"tensor {name} is stored as {stored}; Holdfast reads it in {', '.join(expected)}: "
                    "use the unquantised model or a GGUF of it"
                )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, as stored, in memory of their own."""
    names = _open_file(path).keys()
    file = _MappedFile(path)
    return {name: file.read(name).clone() for name in names}


def _plain_name(stored: str) -> str:
    """Return the name of a tensor in a model without images."""
    prefix = next((one for one in sorted(_PREFIXES, key=len, reverse=True) if stored.startswith(one)), "")
    name = (_PREFIXES.get(prefix, "") + stored[len(prefix) :]).replace(".block_sparse_moe.", ".mlp.")
    for old, new in _RENAMED.items():
        name = name.replace(old, new)
    return _MIXTRAL_EXPERT.sub(lambda match: match[1] + _MIXTRAL[match[2]] + match[3], name)


def _joined_names(names: Mapping[str, str], config: DecoderConfig) -> dict[str, str]:
    """Return the tensors by name, if each part of a layer is stored as one: `norm` and `mixer`."""
    parts = {
        config.stored_layer(layer, is_mlp=is_mlp): (layer, is_mlp)
        for layer in range(config.num_layers)
        for is_mlp in (False, True)
        if config.splits_layers and (config.has_mlp(layer) or not is_mlp)
    }
    found = {}
    for name, stored in names.items():
        match = _PART.fullmatch(name)
        part = None if match is None else parts.get(int(match[1]))
        if match is not None and part is not None:
            layer, is_mlp = part
            mixer = "mlp" if is_mlp else "self_attn" if config.has_attention(layer) else "mamba"
            norm = "post_attention_layernorm" if is_mlp else "input_layernorm"
            name = f"model.layers.{layer}.{norm if match[2] == 'norm' else mixer}.{match[3]}"
        found[name] = stored
    return found


def read_config(folder: Path) -> DecoderConfig:
    """Return the folder's config.json, with the stop ids of generation_config.json."""
    if not folder.joinpath("config.json").is_file():
        raise ModelNotFound(
            f"{folder} contains neither a config.json nor a .gguf file; it is not a model folder"
        )
    generation = folder / "generation_config.json"
    return parse_config(
        read_json(folder / "config.json", UnsupportedModel),
        read_json(generation, UnsupportedModel) if generation.is_file() else None,
    )


def _find_shards(folder: Path) -> dict[str, str]:
    """Return the name of each tensor's file."""
    if folder.joinpath(SINGLE_FILE).is_file():
        return dict.fromkeys(_open_file(folder / SINGLE_FILE).keys(), SINGLE_FILE)
    if folder.joinpath(INDEX_FILE).is_file():
        return _read_index(folder / INDEX_FILE)
    pickles = sorted(each.name for each in folder.glob("*") if each.suffix in (".bin", ".pt", ".pth", ".pkl"))
    if pickles:
        raise BadWeights(
            f"{folder} has its weights as pickles ({pickles[0]}). Opening a pickle can run code, so Holdfast never loads "
            "one. Convert it once, if you trust it: AutoModelForCausalLM.from_pretrained(folder)"
            ".save_pretrained(new_folder) writes safetensors"
        )
    raise BadWeights(f"{folder} contains no weights: expected {SINGLE_FILE}, {INDEX_FILE} or a .gguf file")


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path, BadWeights).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadWeights(f"{path.name} has no weight_map that says which shard holds which tensor")
    for shard in weight_map.values():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard) or ".." in shard:
            raise BadWeights(
                f"{path.name} names the shard {str(shard)[:80]!r}; only files in the same folder are allowed"
            )
    if len(set(weight_map.values())) > _MAX_SHARDS:
        raise BadWeights(f"{path.name} names more than {_MAX_SHARDS} shards")
    return weight_map


def _open_file(path: Path) -> _OpenFile:
    """Open a file for names, shapes and dtypes. The library checks that it is whole."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadWeights(f"the shard {path.name} is missing from {path.parent}")
    try:
        file: _OpenFile = safe_open(path, framework="np")
        file.keys()
        return file
    except (SafetensorError, OSError, ValueError) as error:
        raise BadWeights(f"{path.name} is not a whole safetensors file: {error}") from error
