"""What a fingerprint is made of: every part of an engine that decides bits, but for the weights.

Left out on purpose, because no bit depends on them: the certificate, the determinism mode, how passes, pages and batches are
sized, and the longest context (an entry of a rope table depends on its position alone).
"""

import hashlib
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict
from importlib import metadata

import torch

from holdfast.certification.source_digest import own_source_digest
from holdfast.models.config import DecoderConfig
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.settings import NumericSettings
from holdfast.receipts.fingerprint import Part
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer
from holdfast.version import __version__

# Of a configuration: a name, a limit, what the tokenizer puts before a prompt by itself, what the dtype was chosen
# from, and stop ids that are listed with the tokenizer's.
_DECIDES_NOTHING = ("family", "max_position_embeddings", "bos_token_id", "torch_dtype", "eos_token_ids")


def engine_parts(
    config: DecoderConfig,
    eos_ids: Collection[int],
    tokenizer: Tokenizer,
    recipe: Recipe,
    settings: NumericSettings,
    device: Mapping[str, Part],
    thinking: Mapping[str, Part] | None = None,
) -> dict[str, Part]:
    """Every part but the decoder's weights. A model that thinks has one more."""
    return {
        **({} if thinking is None else {"thinking": dict(thinking)}),
        "config": config_parts(config, eos_ids),
        "tokenizer": tokenizer.digest(),
        "chat_template": ChatTemplate.of(tokenizer).digest() if tokenizer.chat_templates else None,
        "dtype": recipe.dtype,
        "recipe": {name: value for name, value in recipe.as_dict().items() if name != "dtype"},
        "device": dict(device),
        "settings": settings.deciding(),
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
    library path only, triton's compiler the path named after it."""
    of_path = {"library": ("numpy",), "triton": ("triton",)}
    names = ("tokenizers", "jinja2", "llguidance", *of_path.get(recipe.path, ()))
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
