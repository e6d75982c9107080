"""The fingerprint: a digest of all that decides bits, and of nothing else. Same fingerprint, same bits.

It is made of named parts, so that two which differ can say where. Left out on purpose, because no bit depends on them:
the certificate, the determinism mode, how passes, pages and batches are sized, and the longest context (an entry of a
rope table depends on its position alone).
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import torch

from holdfast.arithmetic.recipe import Recipe
from holdfast.arithmetic.settings import NumericSettings
from holdfast.core.params import show
from holdfast.engine.chat_template import ChatTemplate
from holdfast.engine.own_source import own_source_digest
from holdfast.engine.tokenizer import Tokenizer
from holdfast.models.config import DecoderConfig
from holdfast.version import __version__

Part = None | bool | int | float | str | list["Part"] | Mapping[str, "Part"]

# Of a configuration: a name, a limit, what the tokenizer puts before a prompt by itself, what the dtype was chosen
# from, and stop ids that are listed with the tokenizer's.
_DECIDES_NOTHING = ("family", "max_position_embeddings", "bos_token_id", "torch_dtype", "eos_token_ids")
_SHOWN_DIGITS = 12
_ABSENT: Any = object()


@dataclass(frozen=True)
class Fingerprint:
    """Parts by name, nested, and the digest over all of them."""

    parts: Mapping[str, Part]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(_plain(self.parts)))

    def as_dict(self) -> dict[str, Part]:
        """A copy, for JSON."""
        return {"digest": self.digest, "parts": _plain(self.parts)}

    def differences(
        self, other: "Fingerprint", *, here: str = "here", there: str = "in the receipt"
    ) -> list[str]:
        """One line for each leaf that differs: "settings.threads: 2 here, 1 in the receipt"."""
        differing = _differing(self.parts, other.parts)
        return [
            f"{name}: {_shown(mine)} {here}, {_shown(theirs)} {there}" for name, mine, theirs in differing
        ]


def digest_of(value: Part) -> str:
    """SHA-256 over canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def engine_parts(
    config: DecoderConfig,
    eos_ids: Collection[int],
    tokenizer: Tokenizer,
    recipe: Recipe,
    settings: NumericSettings,
    device: Mapping[str, Part],
) -> dict[str, Part]:
    """Every part but the weights."""
    return {
        "config": config_parts(config, eos_ids),
        "tokenizer": tokenizer.digest(),
        "chat_template": ChatTemplate.of(tokenizer).digest() if tokenizer.chat_templates else None,
        "dtype": recipe.dtype,
        "recipe": {name: value for name, value in recipe.as_dict().items() if name != "dtype"},
        "device": dict(device),
        "settings": {**asdict(settings), "environment": dict(settings.environment)},
        "libraries": library_parts(recipe),
    }


def config_parts(config: DecoderConfig, eos_ids: Collection[int]) -> dict[str, Part]:
    """What of a configuration decides bits, and the ids that end an answer, whoever named them."""
    kept = {name: value for name, value in vars(config).items() if name not in _DECIDES_NOTHING}
    scaling, windows = config.rope_scaling, config.layer_windows
    return {
        **kept,
        "layer_windows": windows[0] if len(set(windows)) == 1 else list(windows),
        "rope_scaling": None
        if scaling is None
        else {"kind": type(scaling).__name__, **_listed(asdict(scaling))},
        "eos_token_ids": sorted(eos_ids),
    }


def library_parts(recipe: Recipe) -> dict[str, Part]:
    """Versions of the code that decides prompts, logits and tokens, and a digest of our own. numpy's logarithms serve the
    library path only."""
    names = ("tokenizers", "jinja2", "llguidance", *(("numpy",) if recipe.path == "library" else ()))
    build = [line for line in torch.__config__.show().splitlines() if "CPU capability" not in line]
    return {
        "holdfast": __version__,
        "holdfast_source": own_source_digest(),
        "torch": str(torch.__version__),
        "torch_build": hashlib.sha256("\n".join(build).encode()).hexdigest(),
        "libc": _libc_version(),  # its log() ends every logprob
        **{name: _version(name) for name in names},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _libc_version() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or platform.platform()
    except (AttributeError, OSError, ValueError):  # no glibc
        return " ".join(platform.libc_ver()).strip() or platform.platform()


def _listed(values: Mapping[str, Part | tuple[Part, ...]]) -> dict[str, Part]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _plain(value: Part) -> Part:
    """A copy with whole numbers without a point: tools that rewrite JSON turn 1.0 into 1, and that is no other number."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _differing(
    mine: Mapping[str, Part], theirs: Mapping[str, Part], at: str = ""
) -> Iterator[tuple[str, Part, Part]]:
    """(dotted name, value, other value) of every leaf that differs; a list is a leaf."""
    for name in dict.fromkeys((*mine, *theirs)):
        one, other = mine.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing(one, other, f"{at}{_shown(name)}.")
        elif one is _ABSENT or other is _ABSENT or digest_of(_plain(one)) != digest_of(_plain(other)):
            yield f"{at}{_shown(name)}", one, other


def _shown(value: Part) -> str:
    """A name or a value on one line, whoever wrote it."""
    if value is None or value is _ABSENT:
        return "none" if value is None else "absent"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:_SHOWN_DIGITS]}..."
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 80 else show(value)
