"""What a fingerprint is made of: every part of an engine that decides bits, but for the weights.

Left out on purpose, because no bit depends on them: the certificate, the determinism mode, how passes, pages and batches are
sized, and the longest context (an entry of a rope table depends on its position alone).
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from importlib import metadata

import torch

from holdfast.certification.source_digest import own_source_digest
from holdfast.models.checkpoint import Checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.numerics.recipe import Recipe
from holdfast.numerics.settings import NumericSettings
from holdfast.receipts.fingerprint import Fingerprint, JsonValue
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer
from holdfast.version import __version__

# Of a configuration: a name, a limit, what the tokenizer puts before a prompt by itself, what the dtype was chosen
# from, and stop ids that are listed with the tokenizer's.
_DECIDES_NOTHING = ("family", "max_position_embeddings", "bos_token_id", "torch_dtype", "eos_token_ids")

_MAX_THREADS = 4
_NICENESS = 10


def engine_parts(
    config: DecoderConfig,
    eos_ids: Collection[int],
    tokenizer: Tokenizer,
    recipe: Recipe,
    settings: NumericSettings,
    device: Mapping[str, JsonValue],
    thinking: Mapping[str, JsonValue] | None = None,
) -> dict[str, JsonValue]:
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


def config_parts(config: DecoderConfig, eos_ids: Collection[int]) -> dict[str, JsonValue]:
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


def library_parts(recipe: Recipe) -> dict[str, JsonValue]:
    """Versions of the code that decides prompts, logits and tokens, and a digest of our own. numpy's logarithms serve the
    library path only, triton's compiler the path named after it."""
    of_path = {"torch": ("numpy",), "triton": ("triton",)}
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


def _listed(values: Mapping[str, JsonValue | tuple[JsonValue, ...]]) -> dict[str, JsonValue]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class FingerprintTask:
    """Begins when it is made. `describe` gives every part but the weights, and is called in another thread."""

    def __init__(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._made: Future[Fingerprint] = Future()
        _start(self._make, checkpoint, describe)

    def get(self) -> Fingerprint:
        """The fingerprint, when it is there."""
        return self._made.result()

    def _make(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, JsonValue]]) -> None:
        try:
            self._made.set_result(Fingerprint({"weights": digest_weights(checkpoint), **describe()}))
        except BaseException as error:  # told to whoever asks
            self._made.set_exception(error)


def digest_weights(checkpoint: Checkpoint) -> str:
    """SHA-256 over the digests of all tensors, by name. Files, their metadata and their order do not matter."""
    names = iter(checkpoint.names())  # shared: each next() is one thread's
    digests: dict[str, bytes] = {}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not failures and (name := next(names, None)) is not None:
                digests[name] = _digest_tensor(checkpoint, name)
        except BaseException as error:
            failures.append(error)

    threads = [_start(work) for _ in range(min(_MAX_THREADS, os.cpu_count() or 1))]
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


def _digest_tensor(checkpoint: Checkpoint, name: str) -> bytes:
    raw = checkpoint.raw(name)
    digest = hashlib.sha256(json.dumps([name, raw.kind, checkpoint.shape(name)]).encode())
    digest.update(raw.data)
    return digest.digest()


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread that stands back, and that an ending process does not wait for."""

    def run() -> None:
        if sys.platform == "linux":  # where a priority belongs to a thread
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        target(*arguments)

    thread = threading.Thread(target=run, name="holdfast-fingerprint", daemon=True)
    thread.start()
    return thread
