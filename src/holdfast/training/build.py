"""Build the model and its tokenizer: from scratch, or from a plain checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.families import FAMILIES
from holdfast.thinking.config import ThinkingConfig
from holdfast.training.model import ThinkingModel, fresh_model, start_blocks_from_backbone
from holdfast.training.settings import TrainingSettings
from holdfast.training.tokenizer import END, EOS, SPECIAL, START, build_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class BuiltModel:
    """A model before training. fields: the config.json of the exported folder."""

    model: ThinkingModel
    tokenizer: "Tokenizer"
    fields: dict[str, Any]
    eos_id: int


def build(settings: TrainingSettings, texts: list[str]) -> BuiltModel:
    """texts: the vocabulary of a tokenizer made from scratch."""
    return (
        _from_scratch(settings, texts)
        if settings.backbone is None
        else _from_backbone(settings, Path(settings.backbone))
    )


def config_fields(settings: TrainingSettings, vocab_size: int, eos_id: int) -> dict[str, Any]:
    """config.json: a Mistral with a sliding window, or a Llama without one."""
    size = settings.size
    family = "llama" if settings.window is None else "mistral"
    return {
        "architectures": [FAMILIES["llama" if settings.window is None else "mistral"].architecture],
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": settings.context,
        **({} if settings.window is None else {"sliding_window": settings.window}),
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "torch_dtype": settings.dtype,
    }


def _from_scratch(settings: TrainingSettings, texts: list[str]) -> BuiltModel:
    tokenizer = build_tokenizer(texts)
    eos_id, start_id, end_id = (SPECIAL.index(token) for token in (EOS, START, END))
    fields = config_fields(settings, tokenizer.get_vocab_size(with_added_tokens=True), eos_id)
    config = parse_config(fields)
    thinking = _thinking(settings, config, start_id, end_id)
    return BuiltModel(
        fresh_model(config, thinking, settings.context, settings.seed), tokenizer, fields, eos_id
    )


def _from_backbone(settings: TrainingSettings, folder: Path) -> BuiltModel:
    """A thought starts with the backbone's begin-of-text token (or its end), and ends with its
    end-of-text token.
    """
    from tokenizers import Tokenizer

    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    if not folder.is_dir() or not folder.joinpath("tokenizer.json").is_file():
        raise ConfigError(
            f"{folder} is no folder with a tokenizer.json; convert the model to safetensors first"
        )
    if not config.is_llama_like:
        raise ConfigError(
            f"{folder} is a {config.family} model; training starts from Llama, Mistral, Qwen2 or Qwen3 models"
        )
    if not config.eos_token_ids:
        raise ConfigError(f"{folder} names no eos_token_id; an answer and a thought must be able to end")
    end_id = config.eos_token_ids[0]
    start_id = end_id if config.bos_token_id is None else config.bos_token_id
    thinking = _thinking(settings, config, start_id, end_id)
    model = fresh_model(
        config, thinking, min(settings.context, config.max_position_embeddings), settings.seed
    )
    model.load_tensors({name: checkpoint.tensor(name) for name in checkpoint.names()})
    if thinking is not None:
        start_blocks_from_backbone(model)
    fields = json.loads(folder.joinpath("config.json").read_text(encoding="utf-8"))
    fields = {**fields, "torch_dtype": settings.dtype}
    fields.pop("dtype", None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return BuiltModel(model, tokenizer, fields, end_id)


def _thinking(
    settings: TrainingSettings, config: DecoderConfig, start_id: int, end_id: int
) -> ThinkingConfig | None:
    if settings.form != "thinking":
        return None
    return ThinkingConfig(
        chunk=settings.chunk,
        l_in=settings.l_in,
        l_out=max(settings.l_in, config.num_layers - 1) if settings.l_out is None else settings.l_out,
        max_thought=settings.max_thought,
        start_id=start_id,
        end_id=end_id,
        while_answering=settings.while_answering,
    ).fits(config)
