"""Receipts somebody else wrote: read, checked to the last field, and refused with a reason.

A receipt may come from anywhere. Its size is bounded before it is parsed, its shape before it is walked, and what it says
of itself (digests, counts of tokens) must be true.
"""

import json
import math
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

from holdfast.core.params_json import params_of
from holdfast.core.results import Determinism
from holdfast.core.sampling_params import MAX_SEED, MAX_TOKEN_ID, SamplingParams, show
from holdfast.core.stop_rules import FinishReason
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.numerics.recipe import DEPRECATED_KERNELS, KERNEL_BACKENDS
from holdfast.receipts.fingerprint import Fingerprint, digest_of
from holdfast.receipts.receipt import (
    FORMAT,
    EngineHints,
    LogprobBits,
    PromptLogprobBits,
    Receipt,
    ReceiptChoice,
    digest_logprobs,
    is_aborted_in_prefill,
    is_score,
)

MAX_BYTES = 32 << 20
_MAX_DEPTH = 16
_MAX_THREADS = 1024
_MAX_COUNT = 1 << 53
_REASONS = tuple(one for one in get_args(FinishReason) if one != "error")  # of an error there is no receipt
_KEYS = (
    *("format", "mode", "fingerprint", "certificate", "engine", "prompt", "settings", "seed", "choices"),
    *("prompt_logprobs", "counts"),
)


def read_receipt(source: Path | str | bytes, line: int | None = None) -> Receipt:
    """The receipt in a file (a `Path`) or in JSON text; also one inside an answer's JSON, under "receipt".

    Where there are several, one a line, `line` says which, counted from 1.
    """
    raw = _read_file(source) if isinstance(source, Path) else source
    if isinstance(raw, str):
        raw = raw.encode(errors="surrogatepass")
    if len(raw) > MAX_BYTES:
        _refuse(f"it is larger than {MAX_BYTES >> 20} MiB")
    if line is not None:
        lines = raw.splitlines()
        if not 1 <= line <= len(lines):
            _refuse(f"there is no line {line}; there are {len(lines)}")
        raw = lines[line - 1]
    try:
        content = json.loads(raw, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)
        _check_depth(content, _MAX_DEPTH)
        json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate is text nobody can print
    except (ValueError, RecursionError, MemoryError) as error:
        several = "Extra data" in str(error)
        _refuse(
            f"it is no valid JSON: {error}{'; of several, one a line, say which line' if several else ''}"
        )
    if isinstance(content, dict) and "format" not in content and isinstance(content.get("receipt"), dict):
        content = content["receipt"]
    return parse_receipt(content)


def read_stdin(line: int | None = None) -> Receipt:
    return read_receipt(sys.stdin.buffer.read(MAX_BYTES + 1), line)


def parse_receipt(content: object) -> Receipt:
    """A receipt out of parsed JSON."""
    if not isinstance(content, dict) or "format" not in content:
        _refuse(f"it is no object with a format; expected {FORMAT}")
    if content["format"] != FORMAT:
        _refuse(f"its format is {show(content['format'])}; this version reads {FORMAT}")
    whole = _object(content, "it", _KEYS)
    prompt_ids, prompt_digest = _prompt(whole["prompt"])
    params = _params(whole["settings"])
    choices = _choices(whole["choices"], params)
    seed = _seed(whole["seed"])
    if params.seed not in (None, seed):
        _refuse(f"its settings give the seed {params.seed}, but {seed} was used")
    return Receipt(
        mode=_mode(whole["mode"], params, choices),
        fingerprint=_fingerprint(whole["fingerprint"]),
        certificate=None if whole["certificate"] is None else _digest(whole["certificate"], "certificate"),
        engine=_hints(whole["engine"]),
        prompt_ids=prompt_ids,
        prompt_digest=prompt_digest,
        params=params,
        seed=seed,
        choices=choices,
        prompt_logprobs=_prompt_logprobs(
            whole["prompt_logprobs"], prompt_ids, params, cut=is_aborted_in_prefill(choices)
        ),
        counts=_counts(whole["counts"]),
    )


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise InvalidRequest(f"there is no receipt {show(str(path))}")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"the receipt {show(str(path))} cannot be read: {why}") from error


def _refuse(why: str) -> NoReturn:
    raise InvalidRequest(f"the receipt cannot be used: {why}") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is no finite number")
    return number


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return content


def _check_depth(value: object, depth: int) -> None:
    """Nothing behind this recurses deeper than it may."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        if isinstance(one, dict | list):
            if not depth:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
            _check_depth(one, depth - 1)


def _object(value: object, what: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        _refuse(f"{what} must be an object, not {show(value)}")
    for key in keys:
        if key not in value:
            _refuse(f"{what} lacks {key}")
    unknown = sorted(set(value) - set(keys))
    if unknown:
        _refuse(f"{what} holds {show(unknown[0])}, which {FORMAT} does not know")
    return value


def _list(value: object, what: str, most: int = MAX_BYTES) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        _refuse(f"{what} must be a list of at most {most}, not {show(value)}")
    return value


def _integer(value: object, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(f"{what} must be a whole number from {low} to {high}, not {show(value)}")
    return value


def _one_of(value: object, what: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        _refuse(f"{what} must be one of {', '.join(known)}, not {show(value)}")
    return value


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        _refuse(f"{what} must be a text of at most {most} characters, not {show(value)}")
    return value


def _hex(value: object, what: str, digits: int) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        _refuse(f"{what} must be {digits} hexadecimal digits, not {show(value)}")
    return value


def _digest(value: object, what: str) -> str:
    return _hex(value, what, 64)


def _seed(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,20}", value) or int(value) > MAX_SEED:
        _refuse(f"a seed must be a number from 0 to {MAX_SEED}, written as text, not {show(value)}")
    return int(value)


def _ids(value: object, what: str) -> tuple[int, ...]:
    return tuple(_integer(one, f"a token id of {what}", 0, MAX_TOKEN_ID) for one in _list(value, what))


def _fingerprint(value: object) -> Fingerprint:
    whole = _object(value, "fingerprint", ("digest", "parts"))
    parts = whole["parts"]
    if not isinstance(parts, dict):
        _refuse(f"the fingerprint's parts must be an object, not {show(parts)}")
    fingerprint = Fingerprint(parts)
    if fingerprint.digest != _digest(whole["digest"], "the fingerprint's digest"):
        _refuse("the fingerprint's digest is not that of its parts")
    return fingerprint


def _hints(value: object) -> EngineHints:
    hints = _object(value, "engine", tuple(one.name for one in fields(EngineHints)))
    model = hints["model"]
    kernels = _one_of(hints["kernels"], "the engine's kernels", (*KERNEL_BACKENDS[1:], *DEPRECATED_KERNELS))
    return EngineHints(
        model=None if model is None else _text(model, "the engine's model", 4096),
        device=_text(hints["device"], "the engine's device", 32),
        dtype=_one_of(hints["dtype"], "the engine's dtype", ("bfloat16", "float16", "float32")),
        kernels=DEPRECATED_KERNELS.get(kernels, kernels),
        num_threads=_integer(hints["num_threads"], "the engine's num_threads", 1, _MAX_THREADS),
    )


def _prompt(value: object) -> tuple[tuple[int, ...] | None, str]:
    prompt = _object(value, "prompt", ("digest", "token_ids"))
    digest = _digest(prompt["digest"], "the prompt's digest")
    if prompt["token_ids"] is None:
        return None, digest
    ids = _ids(prompt["token_ids"], "the prompt")
    if digest_of(list(ids)) != digest:
        _refuse("the prompt's digest is not that of its token ids")
    return ids, digest


def _params(value: object) -> SamplingParams:
    """A setting that is missing has its default: a later version may know more of them than this receipt."""
    settings = _at_most(value, "settings", {one.name for one in fields(SamplingParams)})
    if settings.get("seed") is not None:
        _seed(settings["seed"])
    if settings.get("structured") is not None:
        _at_most(
            settings["structured"], "the structured form", {one.name for one in fields(StructuredOutput)}
        )
    try:
        return params_of(settings)
    except InvalidRequest as error:
        _refuse(f"its settings are wrong: {error}")


def _at_most(value: object, what: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{what} must be an object, not {show(value)}")
    unknown = sorted(set(value) - known)
    if unknown:
        _refuse(f"{what} holds {show(unknown[0])}, which this version does not know")
    return value


def _mode(value: object, params: SamplingParams, choices: tuple[ReceiptChoice, ...]) -> Determinism:
    """Only an answer that was cut short may have been left without the guarantee it asked for."""
    mode = _one_of(value, "mode", get_args(Determinism))
    if mode != "none" and not params.deterministic:
        _refuse(f"its mode is {mode}, but its settings do not ask for that")
    if mode == "none" and params.deterministic and all(one.finish_reason != "abort" for one in choices):
        _refuse("its mode is none, but its settings ask for determinism")
    return cast(Determinism, mode)


def _choices(value: object, params: SamplingParams) -> tuple[ReceiptChoice, ...]:
    choices = _list(value, "choices", params.n)
    if not choices:
        _refuse("it holds no choice")
    return tuple(_choice(one, params) for one in choices)


def _choice(value: object, params: SamplingParams) -> ReceiptChoice:
    told = value.get("thoughts") if isinstance(value, dict) else None
    keys = ("token_ids", "finish_reason", "logprobs")
    choice = _object(value, "a choice", keys if told is None else (*keys, "thoughts"))
    ids = _ids(choice["token_ids"], "a choice")
    reason = _one_of(choice["finish_reason"], "finish_reason", _REASONS)
    logprobs = None
    if choice["logprobs"] is not None:
        logprobs = _logprobs(choice["logprobs"], "logprobs")
        if len(logprobs.bits) != len(ids):
            _refuse(f"a choice has {len(ids)} tokens and {len(logprobs.bits)} logprobs")
        if not params.logprobs and digest_logprobs(ids, logprobs.bits) != logprobs.digest:
            _refuse("the digest of a choice's logprobs is not that of their bits")
    elif params.deterministic:
        _refuse("a choice lacks logprobs, which every deterministic answer has")
    return ReceiptChoice(ids, cast(FinishReason, reason), logprobs, None if told is None else _thoughts(told))


def _thoughts(value: object) -> tuple[tuple[int, tuple[int, ...]], ...]:
    found: list[tuple[int, tuple[int, ...]]] = []
    for one in _list(value, "thoughts"):
        pair = _list(one, "a thought", 2)
        if len(pair) != 2:
            _refuse(f"a thought must be a chunk and its tokens, not {show(one)}")
        chunk = _integer(pair[0], "a thought's chunk", found[-1][0] + 1 if found else 0, MAX_TOKEN_ID)
        found.append((chunk, _ids(pair[1], "a thought")))
    return tuple(found)


def _prompt_logprobs(
    value: object, prompt_ids: tuple[int, ...] | None, params: SamplingParams, *, cut: bool
) -> PromptLogprobBits | None:
    """Where the prompt is left out, how many there must be is known only when it is replayed."""
    if value is None:
        if params.prompt_logprobs is not None and len(prompt_ids or ()) > 1 and not cut:
            _refuse("it lacks prompt_logprobs, which its settings ask for")
        return None
    if params.prompt_logprobs is None:
        _refuse("it has prompt_logprobs, which its settings do not ask for")
    whole = _object(value, "prompt_logprobs", ("first", "bits", "digest"))
    most = MAX_TOKEN_ID if is_score(params) else 1
    first = _integer(whole["first"], "the first of prompt_logprobs", 1, most)
    logprobs = _logprobs({"bits": whole["bits"], "digest": whole["digest"]}, "prompt_logprobs")
    if not logprobs.bits:
        _refuse("prompt_logprobs must be null where there are none")
    if prompt_ids is not None:
        ids = prompt_ids[first:]
        if len(logprobs.bits) > len(ids) or (len(logprobs.bits) < len(ids) and not cut):
            _refuse(
                f"there are {len(logprobs.bits)} prompt_logprobs, but {len(ids)} tokens from position {first} on"
            )
        if (
            not params.prompt_logprobs
            and digest_logprobs(ids[: len(logprobs.bits)], logprobs.bits) != logprobs.digest
        ):
            _refuse("the digest of prompt_logprobs is not that of their bits")
    return PromptLogprobBits(first, logprobs)


def _logprobs(value: object, what: str) -> LogprobBits:
    logprobs = _object(value, what, ("bits", "digest"))
    bits = tuple(_hex(one, f"an entry of {what}", 8) for one in _list(logprobs["bits"], what))
    return LogprobBits(bits, _digest(logprobs["digest"], f"the digest of {what}"))


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > 64:
        _refuse(f"counts must be an object of at most 64 numbers, not {show(value)}")
    return {name: _integer(one, f"the count {show(name)}", 0, _MAX_COUNT) for name, one in value.items()}
