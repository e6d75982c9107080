"""The files that make a model folder a thinking one: `thinking.json` and `thinking.safetensors`.

An adapter is a folder with these files only (`holdfast.models.adapter`). A folder without them is a
plain model. Chunk k covers the absolute positions k c .. (k + 1) c - 1 of prompt and answer.
`tests/thinking/reference.py` defines what is computed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import BadWeights, InvalidRequest, UnsupportedModel
from holdfast.models.adapter import require_base
from holdfast.models.checkpoint import Checkpoint, Shape, expected_tensors
from holdfast.models.config import DecoderConfig
from holdfast.models.fields import Fields, read_bool, read_int, read_json, refuse
from holdfast.models.locate import adapter_folder

CONFIG_FILE, WEIGHTS_FILE = "thinking.json", "thinking.safetensors"
# The keys since a format; a model is written in the first one that has its keys, which older versions read too.
_KEYS = {
    1: ("format", "chunk", "l_in", "l_out", "max_thought", "start_id", "end_id", "while_answering"),
    2: ("carry",),
    3: ("reset_ids",),
    4: ("settle",),
}
MAX_CHUNK, MAX_THOUGHT, MAX_RESET = 1 << 10, 1 << 10, 1 << 6
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
    reset_ids        tokens with which each message of a chat begins: after a chunk with their end, in the
                     prompt, the carried state is zero; (): it is carried from message to message
    settle           whether the last chunk of a prompt is closed before the prompt's last token, which reads its
                     state; if not, it goes on with the answer
    """

    chunk: int
    l_in: int
    l_out: int
    max_thought: int
    start_id: int
    end_id: int
    while_answering: bool
    carry: bool = False
    reset_ids: tuple[int, ...] = ()
    settle: bool = False

    @property
    def longest(self) -> int:
        """Maximum length of T's and C's own sequences."""
        return self.chunk + 1 + self.max_thought

    @property
    def format(self) -> int:
        """The number of the first format that has its keys."""
        return 4 if self.settle else 3 if self.reset_ids else 2 if self.carry else 1

    def to_json(self) -> dict[str, Any]:
        """Return the keys of thinking.json but its format. An older format has fewer: its fingerprints stay."""
        keys = _keys(self.format)
        return {key: value for key, value in asdict(self).items() if key in keys}

    def fits(self, decoder: DecoderConfig) -> "ThinkingConfig":
        """Return self, or raise an error that names the field that does not fit the decoder."""
        return parse_thinking({"format": self.format, **self.to_json()}, decoder)


def thinking_folder(model: str | None, checkpoint: Checkpoint) -> Path | None:
    """Return the folder that may hold T and C: that of an adapter, or of the model itself if it is one."""
    adapter = adapter_folder(model)
    if adapter is not None:
        require_base(adapter, checkpoint)
        return adapter
    return checkpoint.path if checkpoint.path.is_dir() else None


def read_thinking(folder: Path, decoder: DecoderConfig) -> ThinkingConfig | None:
    """Read the folder's configuration and check it against its decoder's. Return None for a plain model."""
    if not folder.joinpath(CONFIG_FILE).is_file():
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
    if number not in _KEYS or isinstance(number, bool):
        raise refuse("format", number, f"{min(_KEYS)} to {max(_KEYS)}, the versions of {CONFIG_FILE}")
    keys = _keys(number)
    unknown = sorted(set(fields) - set(keys))
    if unknown:
        raise refuse(unknown[0], fields[unknown[0]], f"no such key in {CONFIG_FILE}")
    while_answering = read_bool(fields, "while_answering")
    carry = "carry" in keys and read_bool(fields, "carry")
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
        reset_ids=_read_resets(fields.get("reset_ids"), carry, decoder) if "reset_ids" in keys else (),
        settle="settle" in keys and read_bool(fields, "settle"),
    )


def _keys(number: int) -> list[str]:
    return [key for since, keys in _KEYS.items() if since <= number for key in keys]


def _read_resets(value: object, carry: bool, decoder: DecoderConfig) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_RESET:
        raise refuse("reset_ids", value, f"a list of at most {MAX_RESET} token ids")
    if value and not carry:
        raise refuse("reset_ids", value, "none: without carry no state lasts until the next message")
    return tuple(read_int({"reset_ids": each}, "reset_ids", 0, decoder.vocab_size - 1) for each in value)


def write_thinking(folder: Path, config: ThinkingConfig) -> None:
    text = json.dumps({"format": config.format, **config.to_json()}, indent=2) + "\n"
    folder.joinpath(CONFIG_FILE).write_text(text, encoding="utf-8")


def check_forced(
    thinking: ThinkingConfig | None,
    params: SamplingParams,
    check_ids: Callable[[Sequence[int], str], None],
) -> None:
    """Refuse forced thoughts that the model cannot have. check_ids: refuses what is not in the vocabulary."""
    check_ids([id_ for _, thought in params.forced for id_ in thought], "forced_thoughts: ")
    if params.forced and thinking is None:
        raise InvalidRequest("forced_thoughts are for models that think; this one does not")
    for _, thought in params.forced:
        assert thinking is not None
        if len(thought) > thinking.max_thought:
            raise InvalidRequest(f"a thought of this model has at most {thinking.max_thought} tokens")
        if thinking.end_id in thought:
            raise InvalidRequest(
                f"forced_thoughts holds {thinking.end_id}, which ends a thought and is not part of one; "
                "[] is the empty thought"
            )


def thinking_tensors(config: ThinkingConfig, decoder: DecoderConfig) -> dict[str, Shape]:
    """Return name and shape of every tensor in thinking.safetensors."""
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
