"""Reads receipts from anywhere, checks every field, and refuses with a reason.

The size is bounded before the text is parsed, the depth before it is walked. msgspec checks the
shape: types, ranges, patterns, missing and unknown fields. What the receipt says of itself
(digests, numbers of tokens, settings) must be true; those checks relate fields to one another, so
they are code. The seal comes last: the other checks name the field that is wrong. The text itself
goes through `json`: msgspec's own decoder keeps the last of two equal keys, and a receipt that two
readers could read differently must be refused.
"""

import json
import math
import re
import sys
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.core.results import Determinism
from holdfast.core.sampling_params import MAX_SEED, MAX_TOKEN_ID, SamplingParams, params_from_json, show
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.numerics.recipe import KERNEL_BACKENDS
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.machine import Machine
from holdfast.receipts.receipt import (
    FORMAT,
    Bits,
    Digest,
    EngineHints,
    LogprobBits,
    PromptLogprobBits,
    Receipt,
    ReceiptChoice,
    Salt,
    Signature,
    Signer,
    TokenId,
    digest_logprobs,
    digest_prompt,
    is_aborted_in_prefill,
    is_score,
    seal_of,
)
from holdfast.structured.behaviour import GrammarLibrary

MAX_BYTES = 32 << 20
_MAX_DEPTH = 16
_MAX_MESSAGE = 400
_HEX_PATTERN = re.compile(r"`str` matching regex '\\\\A\[0-9a-f\]\{(\d+)\}\\\\Z'")
_ALLOWED = {
    "mode": get_args(Determinism),
    "dtype": get_args(get_type_hints(EngineHints)["dtype"]),
    "finish_reason": get_args(get_type_hints(ReceiptChoice)["finish_reason"]),
}


class _FingerprintJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: Digest
    parts: dict[str, Any]


class _PromptJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: Digest
    token_ids: tuple[TokenId, ...] | None
    salt: Salt | None


class _PromptLogprobsJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]
    bits: tuple[Bits, ...]
    digest: Digest


class _ReceiptJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt as it is written."""

    format: str
    mode: Determinism
    fingerprint: _FingerprintJson
    certificate: Digest | None
    engine: EngineHints
    prompt: _PromptJson
    settings: dict[str, Any]
    seed: Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")]
    choices: Annotated[tuple[ReceiptChoice, ...], Meta(min_length=1)]
    prompt_logprobs: _PromptLogprobsJson | None
    counts: Annotated[dict[str, Annotated[int, Meta(ge=0, le=1 << 53)]], Meta(max_length=64)]
    machine: Machine
    signer: Signer | None
    seal: Digest
    signature: Signature | None
    grammar: GrammarLibrary | None = None
    read_len: Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)] | None = None


def read_receipt(source: Path | str | bytes, line: int | None = None) -> Receipt:
    """Return the receipt in a file (a `Path`) or in JSON text; also one inside a response: under "receipt" in
    the answer of a command, under "holdfast" in that of the server.

    With a receipt on each line, `line` selects one, counted from 1.
    """
    return parse_receipt(read_content(source, line))


def read_content(source: Path | str | bytes, line: int | None = None) -> object:
    """Return the same as parsed JSON, not yet checked."""
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
        json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate cannot be printed
    except (ValueError, RecursionError, MemoryError) as error:
        several = "Extra data" in str(error)
        hint = "; if it has a receipt on each line, say which line" if several else ""
        _refuse(f"it is not valid JSON: {error}{hint}")
    return _inside_response(content)


def _inside_response(content: object) -> object:
    if not isinstance(content, dict) or "format" in content:
        return content
    answer = content["holdfast"] if isinstance(content.get("holdfast"), dict) else content
    if isinstance(answer.get("receipt"), dict):
        return answer["receipt"]
    if "receipt" not in answer and ("token_ids" in content or "choices" in content):
        _refuse(
            "it is an answer without its receipt; ask for it: holdfast generate --json --receipt -, or "
            '"return_receipt": true in a request'
        )
    return content


def read_stdin() -> bytes:
    """Return what `read_receipt` takes, from stdin."""
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def parse_receipt(content: object) -> Receipt:
    """Return a receipt out of parsed JSON."""
    require_format(content)
    assert isinstance(content, dict)
    given = _convert(content)
    _check_prompt(given.prompt)
    params, seed = _params(given.settings), _seed(given.seed)
    if params.seed not in (None, seed):
        _refuse(f"its settings give the seed {params.seed}, but {seed} was used")
    if len(given.choices) != params.n:
        _refuse(f"it has {len(given.choices)} choices, but its settings ask for {params.n}")
    for choice in given.choices:
        _check_choice(choice, params)
    if any("thoughts" in one and one["thoughts"] is None for one in content["choices"]):
        _refuse("the thoughts of a choice must be a list where they are given")
    _check_mode(given.mode, params, given.choices)
    fingerprint = _fingerprint(given.fingerprint)
    engine = _engine_hints(given.engine)
    scores = _prompt_logprobs(
        given.prompt_logprobs,
        given.prompt.token_ids,
        params,
        is_aborted=is_aborted_in_prefill(given.choices),
    )
    receipt = Receipt(
        mode=given.mode,
        fingerprint=fingerprint,
        certificate=given.certificate,
        engine=engine,
        prompt_ids=given.prompt.token_ids,
        prompt_digest=given.prompt.digest,
        params=params,
        seed=seed,
        choices=given.choices,
        prompt_logprobs=scores,
        counts=given.counts,
        machine=given.machine,
    )
    return _sealed(receipt, given, content)


def require_format(content: object) -> None:
    """Refuse what is no receipt, and other formats."""
    if not isinstance(content, dict) or "format" not in content:
        _refuse(f"it is not an object with a format; expected {FORMAT}")
    if content["format"] != FORMAT:
        _refuse(f"its format is {show(content['format'])}; this version reads {FORMAT}")


def _sealed(receipt: Receipt, given: _ReceiptJson, content: dict[str, Any]) -> Receipt:
    """Check the seal against the content. Return the receipt with its other fields, or refuse it."""
    try:
        seal = seal_of(content)
    except ValueError as error:
        _refuse(str(error))
    if seal != given.seal:
        _refuse("its seal is broken: something was changed after it was made")
    if (given.signer is None) != (given.signature is None):
        _refuse("it must have a signer and a signature, or neither")
    if given.grammar is not None and receipt.params.structured is None:
        _refuse("it names a grammar library, but its settings ask for no structured output")
    if given.read_len is not None:
        _check_read_len(given.read_len, receipt)
    return replace(
        receipt,
        prompt_salt=given.prompt.salt,
        grammar=given.grammar,
        signer=given.signer,
        seal=given.seal,
        signature=given.signature,
        read_len=given.read_len,
    )


def _check_read_len(read_len: int, receipt: Receipt) -> None:
    if not is_score(receipt.params):
        _refuse("it has a read_len, but its settings are not those of a score")
    first = None if receipt.prompt_logprobs is None else receipt.prompt_logprobs.first
    if first not in (None, read_len):
        _refuse(f"its read_len is {read_len}, but its prompt_logprobs begin at token {first}")
    if receipt.prompt_ids is not None and read_len >= len(receipt.prompt_ids):
        _refuse(
            f"its read_len is {read_len}, but prompt and completion have {len(receipt.prompt_ids)} tokens"
        )


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file() and not _is_open_pipe(path):
            raise InvalidRequest(f"there is no receipt {show(str(path))}")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"the receipt {show(str(path))} cannot be read: {why}") from error


def _is_open_pipe(path: Path) -> bool:
    """Whether it is a pipe that the shell opened for this process, as `<(command)` does. A named pipe may
    never have a writer."""
    return path.parent == Path("/dev/fd") and path.is_fifo()


def _refuse(why: str) -> NoReturn:
    raise InvalidRequest(f"the receipt cannot be used: {why}") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is not a finite number")
    return number


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("an object has the same key twice")
    return content


def _check_depth(value: object, depth: int) -> None:
    """Bound the nesting, so that later code may recurse."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        if isinstance(one, dict | list):
            if not depth:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
            _check_depth(one, depth - 1)


# msgspec describes a type when it is first used, and crashes if two threads do that at once. So it is
# done here, by the one thread that imports this module.
msgspec.json.Decoder(_ReceiptJson)


def _convert(content: dict[str, Any]) -> _ReceiptJson:
    try:
        return msgspec.convert(content, _ReceiptJson)
    except msgspec.ValidationError as error:
        _refuse(_printable(_explain(str(error), content)))


def _printable(text: str) -> str:
    """On one line and of limited length: a field's name may come from a stranger and hold control
    characters of a terminal."""
    short = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in short)


def _explain(error: str, content: dict[str, Any]) -> str:
    """msgspec's message with the field first, and what it leaves out: the value, the allowed
    values, a pattern's meaning."""
    expected, _, path = error.partition(" - at `$")
    expected = _HEX_PATTERN.sub(r"\1 hexadecimal digits", expected[0].lower() + expected[1:])
    path = path.rstrip("`").removeprefix(".")
    if not path:
        return expected
    names_no_value = expected.startswith("expected") and "got" not in expected
    if names_no_value and "[...]" not in path:  # [...]: a key of a dict, which msgspec does not name
        value: Any = content
        for step in path.replace("[", ".").replace("]", "").split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
        expected += f", not {show(value)}"
    allowed = _ALLOWED.get(path.rpartition(".")[2], ())
    return f"{path}: {expected}{'; expected one of ' + ', '.join(allowed) if allowed else ''}"


def _seed(text: str) -> int:
    seed = int(text)
    if seed > MAX_SEED:
        _refuse(f"a seed must be a number from 0 to {MAX_SEED}, written as text, not {show(text)}")
    return seed


def _fingerprint(given: _FingerprintJson) -> Fingerprint:
    try:
        fingerprint = Fingerprint(given.parts)
    except ValueError as error:  # a number that no double represents
        _refuse(f"the fingerprint has no digest: {error}")
    if fingerprint.digest != given.digest:
        _refuse("the fingerprint's digest is not that of its parts")
    return fingerprint


def _engine_hints(given: EngineHints) -> EngineHints:
    known = KERNEL_BACKENDS[1:]
    if given.kernels not in known:
        _refuse(f"engine.kernels must be one of {', '.join(known)}, not {show(given.kernels)}")
    return given


def _check_prompt(prompt: _PromptJson) -> None:
    if prompt.token_ids is None:
        return
    if prompt.salt is None:
        _refuse("the prompt has token ids, but no salt")
    if digest_prompt(prompt.token_ids, prompt.salt) != prompt.digest:
        _refuse("the prompt's digest is not that of its token ids")


def _params(settings: dict[str, Any]) -> SamplingParams:
    """A missing setting has its default: the receipt may be older than the setting."""
    _check_known(settings, "settings", SamplingParams)
    seed, structured = settings.get("seed"), settings.get("structured")
    if seed is not None and (not isinstance(seed, str) or not re.fullmatch("[0-9]{1,20}", seed)):
        _refuse(f"settings.seed must be a number from 0 to {MAX_SEED}, written as text, not {show(seed)}")
    if structured is not None:
        if not isinstance(structured, dict):
            _refuse(f"settings.structured must be an object, not {show(structured)}")
        _check_known(structured, "settings.structured", StructuredOutput)
    try:
        return params_from_json(settings)
    except InvalidRequest as error:
        _refuse(f"its settings are wrong: {error}")


def _check_known(value: dict[str, Any], path: str, kind: type) -> None:
    unknown = sorted(set(value) - {one.name for one in fields(kind)})
    if unknown:
        _refuse(f"{path} contains {show(unknown[0])}, which this version does not know")


def _check_mode(mode: Determinism, params: SamplingParams, choices: tuple[ReceiptChoice, ...]) -> None:
    """Only an aborted answer may lack the guarantee its settings ask for."""
    if mode != "none" and not params.deterministic:
        _refuse(f"its mode is {mode}, but its settings do not ask for determinism")
    if mode == "none" and params.deterministic and all(one.finish_reason != "abort" for one in choices):
        _refuse("its mode is none, but its settings ask for determinism")


def _check_choice(choice: ReceiptChoice, params: SamplingParams) -> None:
    ids, logprobs = choice.token_ids, choice.logprobs
    if logprobs is not None:
        if len(logprobs.bits) != len(ids):
            _refuse(f"a choice has {len(ids)} tokens and {len(logprobs.bits)} logprobs")
        if not params.logprobs and digest_logprobs(ids, logprobs.bits) != logprobs.digest:
            _refuse("the digest of a choice's logprobs is not that of their bits")
    elif params.deterministic:
        _refuse("a choice lacks logprobs, which every deterministic answer has")
    chunks = [chunk for chunk, _ in choice.thoughts or ()]
    if any(after <= before for before, after in pairwise(chunks)):
        _refuse("the chunks of a choice's thoughts are not in order")


def _prompt_logprobs(
    given: _PromptLogprobsJson | None,
    prompt_ids: tuple[int, ...] | None,
    params: SamplingParams,
    *,
    is_aborted: bool,
) -> PromptLogprobBits | None:
    """Without the prompt's token ids, their number is checked only by a replay."""
    if given is None:
        if params.prompt_logprobs is not None and len(prompt_ids or ()) > 1 and not is_aborted:
            _refuse("it lacks prompt_logprobs, which its settings ask for")
        return None
    if params.prompt_logprobs is None:
        _refuse("it has prompt_logprobs, which its settings do not ask for")
    if given.first != 1 and not is_score(params):
        _refuse(f"prompt_logprobs.first must be 1, not {given.first}: the settings are not those of a score")
    bits = given.bits
    if not bits:
        _refuse("prompt_logprobs must be null where there are none")
    if prompt_ids is not None:
        ids = prompt_ids[given.first :]
        if len(bits) > len(ids) or (len(bits) < len(ids) and not is_aborted):
            _refuse(
                f"there are {len(bits)} prompt_logprobs, but {len(ids)} tokens from position {given.first} on"
            )
        if not params.prompt_logprobs and digest_logprobs(ids[: len(bits)], bits) != given.digest:
            _refuse("the digest of prompt_logprobs is not that of their bits")
    return PromptLogprobBits(given.first, LogprobBits(bits, given.digest))
