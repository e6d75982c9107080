"""Adapters: a folder with further blocks of a model, without the backbone they were trained on.

    adapter.json    {"format": 1, "base": "smollm2", "base_norms": "5e3c..."}

`base` is the backbone: a built-in name, a path, or a hub id. `base_norms` is a digest of its norms,
which any training changes, so blocks are never added to other weights than those they were trained
on. The norms are small: opening an adapter does not read the backbone.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import BadWeights
from holdfast.models.checkpoint import Checkpoint

ADAPTER_FILE = "adapter.json"
_FORMAT = 1


@dataclass(frozen=True)
class AdapterInfo:
    """The contents of adapter.json. Relative paths of `base` start at the adapter's folder."""

    base: str
    base_norms: str


def is_adapter(folder: Path) -> bool:
    return folder.joinpath(ADAPTER_FILE).is_file()


def read_adapter(folder: Path) -> AdapterInfo:
    path = folder / ADAPTER_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != _FORMAT:
            raise ValueError(f"format is {fields['format']!r}, expected {_FORMAT}")
        info = AdapterInfo(base=fields["base"], base_norms=fields["base_norms"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path} does not describe an adapter: {error!r}") from error
    if not all(isinstance(each, str) and each for each in (info.base, info.base_norms)):
        raise BadWeights(f"{path} does not describe an adapter: base and base_norms must be texts")
    if not Path(info.base).expanduser().is_absolute() and folder.joinpath(info.base).exists():
        return AdapterInfo(str(folder / info.base), info.base_norms)
    return info


def write_adapter(folder: Path, info: AdapterInfo) -> None:
    text = json.dumps({"format": _FORMAT, **asdict(info)}, indent=2) + "\n"
    folder.joinpath(ADAPTER_FILE).write_text(text, encoding="utf-8")


def norms_digest(checkpoint: Checkpoint) -> str:
    """Return the digest of all norm weights, as stored."""
    digest = hashlib.sha256()
    for name in sorted(each for each in checkpoint.names() if each.endswith("norm.weight")):
        raw = checkpoint.raw(name)
        digest.update(json.dumps([name, raw.format, list(checkpoint.shape(name))]).encode())
        digest.update(raw.data)
    return digest.hexdigest()


def require_base(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse another backbone than the adapter's."""
    info = read_adapter(folder)
    if norms_digest(checkpoint) != info.base_norms:
        raise BadWeights(
            f"the adapter {folder} was trained on {info.base}, and {checkpoint.path} has other weights; "
            "give the checkpoint it was trained on"
        )
