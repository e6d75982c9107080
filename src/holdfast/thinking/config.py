"""The files that make a model folder a thinking one: `thinking.json` and `thinking.safetensors`.

An adapter is a folder with these files only (`holdfast.models.adapter`). A folder without them is a
plain model. Chunk k covers the absolute positions k c .. (k + 1) c - 1 of prompt and answer.
`holdfast.thinking.reference` defines what is computed.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import BadWeights, UnsupportedModel
from holdfast.models.adapter import require_base
from holdfast.models.checkpoint import Checkpoint, Shape, expected_tensors
from holdfast.models.config import DecoderConfig
from holdfast.models.fields import Fields, read_int, read_json, refuse
from holdfast.models.locate import adapter_folder

CONFIG_FILE, WEIGHTS_FILE = "thinking.json", "thinking.safetensors"
FORMAT = 2
FORMAT_WITHOUT_CARRY = 1  # which older versions read too
MAX_CHUNK, MAX_THOUGHT = 1 << 10, 1 << 10
_KEYS = ("format", "chunk", "l_in", "l_out", "max_thought", "start_id", "end_id", "while_answering", "carry")
_FIRST_LAYER = "model.layers.0."


@dataclass(frozen=True)
class ThinkingConfig:
    """How a model thinks.

    chunk            c: tokens in a chunk, and vectors in a state
    l_in             the state is added to the residual stream after the first l_in layers
    l_out            T reads the residual stream after the first l_out layers
    max_thought      maximum number of tokens of a thought, without its end token
    start_id         token whose embedding separates the chunk's hidden states from the thought in T's input
    end_id           token with which T ends a thought; alone it is the trivial thought
    while_answering  whether chunks with answer tokens are thought about; if not, only chunks that lie
                     completely in the prompt are
    carry            whether a state is added to all chunks up to the next thought that is not trivial; if
                     not, only to the next chunk
    """

    chunk: int
    l_in: int
    l_out: int
    max_thought: int
    start_id: int
    end_id: int
    while_answering: bool
    carry: bool = False

    @property
    def longest(self) -> int:
        """Maximum length of T's and C's own sequences."""
        return self.chunk + 1 + self.max_thought

    def to_json(self) -> dict[str, int | bool]:
        """The keys of thinking.json but its format; `carry` only if it is set, as in format 1. Fingerprints of
        models that do not carry stay as they were."""
        return {key: value for key, value in asdict(self).items() if key != "carry" or value}

    def fits(self, decoder: DecoderConfig) -> "ThinkingConfig":
        """Return self, or raise an error that names the field that does not fit the decoder."""
        for key, value, low, high in (
            ("chunk", self.chunk, 1, MAX_CHUNK),
            ("l_in", self.l_in, 1, decoder.num_layers),
            ("l_out", self.l_out, self.l_in, decoder.num_layers),
            ("max_thought", self.max_thought, 1, MAX_THOUGHT),
            ("start_id", self.start_id, 0, decoder.vocab_size - 1),
            ("end_id", self.end_id, 0, decoder.vocab_size - 1),
        ):
            read_int({key: value}, key, low, high)
        return self


def is_thinking(folder: Path) -> bool:
    return folder.joinpath(CONFIG_FILE).is_file()


def thinking_folder(model: str | None, checkpoint: Checkpoint) -> Path | None:
    """The folder that may hold T and C: that of an adapter, or of the model itself. None for a file."""
    adapter = adapter_folder(model)
    if adapter is not None:
        require_base(adapter, checkpoint)
        return adapter
    return checkpoint.path if checkpoint.path.is_dir() else None


def read_thinking(folder: Path, decoder: DecoderConfig) -> ThinkingConfig | None:
    """The folder's thinking configuration, checked against its decoder's; None for a plain model."""
    if not is_thinking(folder):
        if folder.joinpath(WEIGHTS_FILE).is_file():
            raise BadWeights(
                f"{folder} holds a {WEIGHTS_FILE} but no {CONFIG_FILE}, which says how to use it"
            )
        return None
    if not folder.joinpath(WEIGHTS_FILE).is_file():
        raise BadWeights(f"{folder} holds a {CONFIG_FILE} but no {WEIGHTS_FILE}: the model cannot think")
    return parse_thinking(read_json(folder / CONFIG_FILE, UnsupportedModel), decoder)


def parse_thinking(fields: Fields, decoder: DecoderConfig) -> ThinkingConfig:
    """Parse thinking.json. Every key is required and unknown keys are refused: a default could change answers."""
    number = fields.get("format")
    if number not in (FORMAT_WITHOUT_CARRY, FORMAT) or isinstance(number, bool):
        raise refuse("format", number, f"{FORMAT_WITHOUT_CARRY} or {FORMAT}, the versions of {CONFIG_FILE}")
    keys = [key for key in _KEYS if key != "carry" or number == FORMAT]
    unknown = sorted(set(fields) - set(keys))
    if unknown:
        raise refuse(unknown[0], fields[unknown[0]], f"no such key in {CONFIG_FILE}")
    while_answering = _read_bool(fields, "while_answering")
    carry = number == FORMAT and _read_bool(fields, "carry")
    if not decoder.is_llama_like:
        raise UnsupportedModel(
            f"the decoder of a thinking model is a Llama, Mistral, Qwen2 or Qwen3 model; this one is {decoder.family}"
        )
    l_in = read_int(fields, "l_in", 1, decoder.num_layers)
    return ThinkingConfig(
        chunk=read_int(fields, "chunk", 1, MAX_CHUNK),
        l_in=l_in,
        l_out=read_int(fields, "l_out", l_in, decoder.num_layers),
        max_thought=read_int(fields, "max_thought", 1, MAX_THOUGHT),
        start_id=read_int(fields, "start_id", 0, decoder.vocab_size - 1),
        end_id=read_int(fields, "end_id", 0, decoder.vocab_size - 1),
        while_answering=while_answering,
        carry=carry,
    )


def _read_bool(fields: Fields, key: str) -> bool:
    value = fields.get(key)
    if not isinstance(value, bool):
        raise refuse(key, value, "true or false")
    return value


def write_thinking(folder: Path, config: ThinkingConfig) -> None:
    number = FORMAT if config.carry else FORMAT_WITHOUT_CARRY
    text = json.dumps({"format": number, **config.to_json()}, indent=2) + "\n"
    folder.joinpath(CONFIG_FILE).write_text(text, encoding="utf-8")


def thinking_tensors(config: ThinkingConfig, decoder: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor in thinking.safetensors."""
    layer = {
        name.removeprefix(_FIRST_LAYER): shape
        for name, shape in expected_tensors(decoder).items()
        if name.startswith(_FIRST_LAYER)
    }
    hidden = (decoder.hidden_size,)
    return {
        **{f"t.layer.{name}": shape for name, shape in layer.items()},
        "t.norm.weight": hidden,
        **{f"c.layer.{name}": shape for name, shape in layer.items()},
        "c.queries": (config.chunk, decoder.hidden_size),
        "c.norm.weight": hidden,
        "c.scale": hidden,
    }
