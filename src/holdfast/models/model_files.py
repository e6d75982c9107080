"""The files of a model that are read, and the parts of its fingerprint that hold what they decide.

Nothing else of a folder is read. What a file decides is either in the fingerprint or refused:

    config.json                    sizes, norms, rope: "config". Unsupported values are refused
    generation_config.json         tokens that end an answer: "config". Its sampling settings are not read
    *.safetensors, their index     tensors by name: "weights", however they are spread over files
    tokenizer.json                 ids of a text, text of ids: "tokenizer". Refused: dropout, two tokens with one id
    tokenizer_config.json          added and special tokens: "tokenizer"; templates: "chat_template"
    special_tokens_map.json        special tokens: "tokenizer", "chat_template"
    chat_template.jinja            the template: "chat_template". Refused: addresses in memory
    thinking.*                     blocks T and C: "thinking"
    adapter.json                   where the backbone is, which has the parts above; its digest is checked
    *.gguf                         tensors: "weights", tokenizer.ggml.*: "tokenizer", tokenizer.chat_template,
                                   tokenizer.chat_template.tool_use: "chat_template", the others: "config"

Some are read twice: by the engine and for the fingerprint. So a file may not change while a model is loaded.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from holdfast.errors import BadWeights

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "thinking.json",
    "adapter.json",
    "*.gguf",
)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model as they were when it was opened: device, inode, size and times of each."""

    stamps: Mapping[Path, tuple[int, ...] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, *models: Path) -> "ModelFiles":
        """Remember the files of folders, or single files."""
        files = [one for model in models for one in (model.iterdir() if model.is_dir() else [model])]
        return cls(
            {one: _stamp(one) for one in files if any(fnmatch(one.name, known) for known in MODEL_FILES)}
        )

    @property
    def num_weight_bytes(self) -> int:
        """The size of the files that have tensors."""
        files = [one for one in self.stamps if one.suffix in (".safetensors", ".gguf")]
        return sum(one.stat().st_size for one in files)

    def require_unchanged(self) -> None:
        """Raise `BadWeights` if a file changed or was replaced since."""
        for path, stamp in self.stamps.items():
            if _stamp(path) != stamp:
                raise BadWeights(f"{path} changed while the model was loaded; load it again")


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
