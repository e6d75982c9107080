"""A tiny model with random weights, and an engine for it, without files: fast enough for thousands
of runs. Its shape stands beside the published ones under a name.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.engine.builder import assemble
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.shapes import published_config
from holdfast.text.tokenizer import byte_tokenizer

VOCAB = 512
EOS = 300  # above the byte tokens, so that every byte can be generated


def tiny_fields(**changes: Any) -> dict[str, Any]:
    """The config.json of a Llama with about 200 thousand parameters and a context of 1024 tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": EOS,
        **changes,
    }


def tiny_config(**changes: Any) -> DecoderConfig:
    """The same, read."""
    return parse_config(tiny_fields(**changes))


# With eight experts in each layer, of which a token has two.
_EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
TINY, TINY_MOE = "tiny", "tiny-moe"
_TINY_SHAPES: dict[str, dict[str, Any]] = {TINY: {}, TINY_MOE: _EXPERTS}


def is_tiny(shape: str) -> bool:
    return shape in _TINY_SHAPES


def shape_config(shape: str) -> DecoderConfig:
    """The configuration of a published shape or of a tiny one."""
    return tiny_config(**_TINY_SHAPES[shape]) if is_tiny(shape) else published_config(shape)


@contextmanager
def dummy_model(shape: str) -> Iterator[str]:
    """What `LLM(..., load_format="dummy")` takes for a shape: its name, or a folder for a tiny one."""
    if not is_tiny(shape):
        yield shape
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(tiny_fields(**_TINY_SHAPES[shape])))
        yield folder


def tiny_engine(config: EngineConfig, *, near_ties: bool = False, seed: int = 0, eos_id: int = EOS) -> Engine:
    """An engine over random weights with a large deviation, so that tokens vary.

    With near_ties every token has another one with nearly the same logit.
    """
    model = tiny_config(eos_token_id=eos_id)
    checkpoint = DummyCheckpoint(model, seed=seed, deviation=0.25, twins=near_ties)
    return assemble(config, checkpoint, byte_tokenizer())
