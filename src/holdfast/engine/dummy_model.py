"""A model of random weights, for measurements: any shape there is a configuration of, and bytes for tokens if need be."""

from pathlib import Path

import torch

from holdfast.errors import ConfigError
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.safetensors import read_config
from holdfast.models.shapes import published_config
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer


def open_dummy(model: str | None, device: torch.device) -> DummyCheckpoint:
    """Normal weights in the shape of a folder's config.json or of a published model."""
    if model is None:
        raise ConfigError(
            "load_format dummy needs a model: a folder with a config.json, or a name such as llama-3.1-8b"
        )
    return DummyCheckpoint(_config_of(model), device=device)


def dummy_tokenizer(model: str | None, chat_template: str | None) -> Tokenizer:
    """The folder's, or one token a byte."""
    folder = Path(model or "").expanduser()
    if model and (folder / "tokenizer.json").is_file():
        return open_tokenizer(folder, chat_template=chat_template)
    tokenizer = byte_tokenizer()
    return tokenizer if chat_template is None else tokenizer.with_chat_template(chat_template)


def _config_of(model: str) -> DecoderConfig:
    folder = Path(model).expanduser()
    return read_config(folder) if folder.is_dir() else published_config(model)
