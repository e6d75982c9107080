"""From settings to a model with its tokenizer: from scratch, or upon a plain checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import FAMILIES, DecoderConfig, parse_config
from holdfast.thinking.config import ThinkingConfig
from holdfast.training.model import ThinkingModel, fresh_model, start_blocks_from_backbone
from holdfast.training.settings import Settings
from holdfast.training.tokenizer import END, EOS, SPECIAL, START, build_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Built:
    """What training begins with. fields: the config.json the exported folder gets."""

    model: ThinkingModel
    tokenizer: "Tokenizer"
    fields: dict[str, Any]
    eos_id: int


def build(settings: Settings, texts: list[str]) -> Built:
    """texts: what a tokenizer made from scratch should know."""
    return (
        _from_scratch(settings, texts)
        if settings.backbone is None
        else _upon(settings, Path(settings.backbone))
    )


def config_fields(settings: Settings, vocab_size: int, eos_id: int) -> dict[str, Any]:
    """A config.json the engine reads: a Mistral with a sliding window, or a Llama without."""
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


def _from_scratch(settings: Settings, texts: list[str]) -> Built:
    tokenizer = build_tokenizer(texts)
    eos_id, start_id, end_id = (SPECIAL.index(token) for token in (EOS, START, END))
    fields = config_fields(settings, tokenizer.get_vocab_size(with_added_tokens=True), eos_id)
    config = parse_config(fields)
    thinking = _thinking(settings, config, start_id, end_id)
    return Built(fresh_model(config, thinking, settings.context, settings.seed), tokenizer, fields, eos_id)


def _upon(settings: Settings, folder: Path) -> Built:
    """Start and end of a thought are the backbone's own begin (or end) and end of text, as it knows them."""
    from tokenizers import Tokenizer

    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    if not folder.is_dir() or not folder.joinpath("tokenizer.json").is_file():
        raise ConfigError(
            f"{folder} is no folder with a tokenizer.json; convert the model to safetensors first"
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
    return Built(model, tokenizer, fields, end_id)


def _thinking(settings: Settings, config: DecoderConfig, start_id: int, end_id: int) -> ThinkingConfig | None:
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
