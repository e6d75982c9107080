"""Computes an engine's fingerprint: everything that decides bits.

Our own code is named by versions (`numerics/versions.py`), that of the backend in the recipe. A
comment or another release changes nothing.

Left out, because no bit depends on it: the certificate, the determinism mode, the sizes of passes,
pages and batches, and the maximum context length (an entry of a rope table depends on its position
only).

With C kernels also the machine: CPU, compiler, libraries, environment and threads. The sources of the
kernels fix every operation and every order, and they call no library for a number. Outside of them only
operations of numpy run that copy, round, or compute one correctly rounded result. The canary shows
a build that computes otherwise. It also has the tokenizer's ids of a fixed text and the chat template's
renderings of fixed messages, in place of the versions of the libraries that compute them. The grammar library
is named in the receipts of structured answers (`structured.behaviour`).

The rope tables are data, as the weights are, and have a digest of their own.

The weights are hashed in threads of their own, while they are loaded (`FingerprintTask`). Hashing
releases Python's lock and runs at a lower priority than the engine's threads. Only a caller of
`get` waits for it.
"""

import atexit
import contextlib
import hashlib
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np

from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import Checkpoint
from holdfast.models.config import FAMILY_DEFAULTS, DecoderConfig, plain_value
from holdfast.models.rope import rope_frequencies
from holdfast.numerics.ops import Backend
from holdfast.numerics.rope import ROPE_CHUNK, rope_chunk
from holdfast.numerics.settings import NumericSettings
from holdfast.numerics.versions import VERSIONS
from holdfast.receipts.canonical_json import JsonValue
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.machine import library_version
from holdfast.text.chat_template import digest_renderings, text_parts
from holdfast.text.tokenizer import Tokenizer

# Fields of a configuration that decide no bit: a name, a limit, what the tokenizer adds to a
# prompt, and the default of the dtype. The stop ids are listed together with the tokenizer's.
_EXCLUDED_FIELDS = ("family", "max_position_embeddings", "bos_token_id", "torch_dtype", "eos_token_ids")

_CODE = ("model", "sampling", "text")  # that of the backend is in the recipe
# Chunks of the rope tables in their digest: angles of every size, 15 ms of one core.
_ROPE_STARTS = (0, *(ROPE_CHUNK << doubled for doubled in range(10)))

# Words, numbers, code, spaces and line breaks, accents, scripts without spaces, composed and wide characters.
_PROBE = (
    "Hello, world! It's 3.14159 or 1e-9?\n\n\tdef f(x):\n        return x[::-1]  # <|end|> </s>\r\n"
    "Äpfel cafe\u0301 \u6771\u4eac\u90fd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947"
    " \U0001f469\u200d\U0001f680   \ufeff\u00a0\u2028end"
)
_MAX_THREADS = 4
_NICENESS = 10


def engine_parts(
    config: DecoderConfig,
    eos_ids: Collection[int],
    tokenizer: Tokenizer,
    backend: Backend,
    settings: NumericSettings,
    device: Mapping[str, JsonValue],
    canary: Mapping[str, str],
    extra: Mapping[str, Mapping[str, JsonValue]] = MappingProxyType({}),
) -> dict[str, JsonValue]:
    """Return every part except the decoder's weights.

    extra: what a model adds, by the component of code that computes it. An engine for which special tokens
    in content are no text has a part more: it reads other prompts in the same messages.
    """
    recipe = backend.recipe
    return {
        **{name: dict(part) for name, part in extra.items()},
        **({"special_tokens_in_content": "control"} if tokenizer.controls_in_content else {}),
        "config": config_parts(config, eos_ids),
        **text_parts(tokenizer),
        "dtype": recipe.dtype,
        "recipe": {name: value for name, value in recipe.as_dict().items() if name != "dtype"},
        "rope_tables": digest_rope_tables(config),
        "code": {name: VERSIONS[name] for name in (*_CODE, *extra)},
        **_machine_parts(backend, device, settings),
        "canary": {**canary, **({} if recipe.depends_on_device else _text_canary(tokenizer))},
    }


def _machine_parts(
    backend: Backend, device: Mapping[str, JsonValue], settings: NumericSettings
) -> dict[str, JsonValue]:
    """Device, settings and libraries. Where no library chooses its arithmetic by the device, only its
    kind counts."""
    if not backend.recipe.depends_on_device:
        return {"device": {"kind": device["kind"]}}
    libraries = library_parts(backend.can.libraries)
    return {"device": dict(device), "settings": settings.deciding(), "libraries": libraries}


def _text_canary(tokenizer: Tokenizer) -> dict[str, str]:
    rendered = {"chat_template": digest_renderings(tokenizer)} if tokenizer.chat_templates else {}
    return {"tokenizer": digest_probe(tokenizer), **rendered}


def digest_probe(tokenizer: Tokenizer) -> str:
    """Return SHA-256 over the ids of a text with many kinds of characters."""
    return hashlib.sha256(json.dumps(list(tokenizer.encode(_PROBE))).encode()).hexdigest()


def config_parts(config: DecoderConfig, eos_ids: Collection[int]) -> dict[str, JsonValue]:
    """Return the fields of a configuration that decide bits, and all ids that end an answer."""
    kept = {
        name: value if name == "rope_scaling" else plain_value(value)
        for name, value in vars(config).items()
        if name not in _EXCLUDED_FIELDS
        and not (name in FAMILY_DEFAULTS and value == FAMILY_DEFAULTS[name])  # as in Llama
    }
    scaling, windows = config.rope_scaling, config.layer_windows
    return {
        **_with_lists(kept),
        "layer_windows": windows[0] if len(set(windows)) == 1 else list(windows),
        "rope_scaling": scaling and {"kind": type(scaling).__name__, **_with_lists(asdict(scaling))},
        "eos_token_ids": sorted(eos_ids),
    }


def digest_rope_tables(config: DecoderConfig) -> str:
    """Return SHA-256 over the cosines and sines of some positions, whatever the model's limit."""
    digest = hashlib.sha256()
    for kind in config.rope_kinds:
        inv_freq, attention_scaling = rope_frequencies(config, kind)
        for start in _ROPE_STARTS:
            tables = np.stack(rope_chunk(inv_freq, attention_scaling, start))  # fp32 [2, 128, D / 2]
            digest.update(tables.tobytes())
    return digest.hexdigest()


def library_parts(of_backend: Sequence[str]) -> dict[str, JsonValue]:
    """Return versions of the libraries that decide prompts, logits and tokens. numpy is not one of them: only
    operations of it are used whose result IEEE 754 defines."""
    import torch

    names = ("tokenizers", "jinja2", "llguidance", *of_backend)
    build = [line for line in torch.__config__.show().splitlines() if "CPU capability" not in line]
    return {
        "torch": str(torch.__version__),
        "torch_build": hashlib.sha256("\n".join(build).encode()).hexdigest(),
        "libc": _libc_version(),
        **{name: library_version(name) for name in names},
    }


def _libc_version() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or platform.platform()
    except (AttributeError, OSError, ValueError):  # no glibc
        return " ".join(platform.libc_ver()).strip() or platform.platform()


def _with_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class FingerprintTask:
    """Starts when it is made. `describe` returns the other parts; it is called in a thread.

    Where the interpreter ends before, it waits for the thread: torch's code aborts the process if its
    thread is ended from outside.
    """

    def __init__(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._made: Future[Fingerprint] = Future()
        self._is_leaving = threading.Event()
        atexit.register(self._leave)
        self._thread = _start(self._make, checkpoint, describe)

    def get(self) -> Fingerprint:
        """Return the fingerprint. Waits until it is computed."""
        return self._made.result()

    def _make(self, checkpoint: Checkpoint, describe: Callable[[], Mapping[str, JsonValue]]) -> None:
        try:
            # First: it leaves Python's lock to the loading of weights.
            weights = digest_weights(checkpoint, self._is_leaving.is_set)
            self._made.set_result(Fingerprint.of({"weights": weights, **describe()}))
        except BaseException as error:  # raised by `get`
            self._made.set_exception(error)
        finally:
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        self._is_leaving.set()
        self._thread.join()


def digest_weights(checkpoint: Checkpoint, stops: Callable[[], bool] = lambda: False) -> str:
    """Return SHA-256 over the digests of all tensors, by name. Files, metadata and order do not matter.
    Raises `EngineStopped` once stops() between two tensors."""
    names = iter(checkpoint.names())  # shared by the threads: next() is atomic
    digests: dict[str, bytes] = {}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not failures and (name := next(names, None)) is not None:
                if stops():
                    raise EngineStopped("the process ends")
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
    digest = hashlib.sha256(json.dumps([name, raw.format, checkpoint.shape(name)]).encode())
    digest.update(raw.data)
    checkpoint.release()
    return digest.digest()


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a daemon thread with low priority."""

    def run() -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        target(*arguments)

    thread = threading.Thread(target=run, name="holdfast-fingerprint", daemon=True)
    thread.start()
    return thread
