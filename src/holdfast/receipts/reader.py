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
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

import msgspec

from holdfast.core.results import Determinism
from holdfast.core.sampling_params import MAX_SEED, SamplingParams, show
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.numerics.recipe import KERNEL_BACKENDS
from holdfast.receipts.receipt import (
    FORMAT,
    EngineHints,
    Receipt,
    ReceiptChoice,
    SaltedPrompt,
    digest_logprobs,
    digest_prompt,
    is_score,
    seal_of,
)

MAX_BYTES = 32 << 20
_MAX_DEPTH = 16
_MAX_MESSAGE = 400
_HEX_PATTERN = re.compile(r"`str` matching regex '\\\\A\[0-9a-f\]\{(\d+)\}\\\\Z'")
_ALLOWED = {
    "mode": get_args(Determinism),
    "dtype": get_args(get_type_hints(EngineHints)["dtype"]),
    "finish_reason": get_args(get_type_hints(ReceiptChoice)["finish_reason"]),
}


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
    require_format(content)
    assert isinstance(content, dict)
    receipt = _convert(content)
    _check_prompt(receipt.prompt)
    _check_settings(receipt)
    _check_seed(receipt)
    params = receipt.params
    if len(receipt.choices) != params.n:
        _refuse(f"it has {len(receipt.choices)} choices, but its settings ask for {params.n}")
    for choice in receipt.choices:
        _check_choice(choice, params)
    if any("thoughts" in one and one["thoughts"] is None for one in content["choices"]):
        _refuse("the thoughts of a choice must be a list where they are given")
    _check_mode(receipt)
    if receipt.engine.kernels not in KERNEL_BACKENDS[1:]:
        known = ", ".join(KERNEL_BACKENDS[1:])
        _refuse(f"engine.kernels must be one of {known}, not {show(receipt.engine.kernels)}")
    _check_scores(receipt)
    _check_seal(receipt, content)
    if receipt.grammar is not None and params.structured is None:
        _refuse("it names a grammar library, but its settings ask for no structured output")
    if receipt.read_len is not None:
        _check_read_len(receipt.read_len, receipt)
    return receipt


def require_format(content: object) -> None:
    if not isinstance(content, dict) or "format" not in content:
        _refuse(f"it is not an object with a format; expected {FORMAT}")
    if content["format"] != FORMAT:
        _refuse(f"its format is {show(content['format'])}; this version reads {FORMAT}")


def _check_seal(receipt: Receipt, content: dict[str, Any]) -> None:
    """Check the seal against the content, which a `Receipt` may write otherwise."""
    try:
        seal = seal_of(content)
    except ValueError as error:
        _refuse(str(error))
    if seal != receipt.seal:
        _refuse("its seal is broken: something was changed after it was made")
    if (receipt.signer is None) != (receipt.signature is None):
        _refuse("it must have a signer and a signature, or neither")


def _check_read_len(read_len: int, receipt: Receipt) -> None:
    if not is_score(receipt.params):
        _refuse("it has a read_len, but its settings are not those of a score")
    first = None if receipt.prompt_logprobs is None else receipt.prompt_logprobs.first
    if first not in (None, read_len):
        _refuse(f"its read_len is {read_len}, but its prompt_logprobs begin at token {first}")
    ids = receipt.prompt.token_ids
    if ids is not None and read_len >= len(ids):
        _refuse(f"its read_len is {read_len}, but prompt and completion have {len(ids)} tokens")


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
    """Return whether it is a pipe that the shell opened for this process, as `<(command)` does. A named pipe may
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
msgspec.json.Decoder(Receipt)


def _convert(content: dict[str, Any]) -> Receipt:
    try:
        return msgspec.convert(content, Receipt)
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


def _check_prompt(prompt: SaltedPrompt) -> None:
    if prompt.token_ids is None:
        return
    if prompt.salt is None:
        _refuse("the prompt has token ids, but no salt")
    if digest_prompt(prompt.token_ids, prompt.salt) != prompt.digest:
        _refuse("the prompt's digest is not that of its token ids")


def _check_settings(receipt: Receipt) -> None:
    settings = receipt.settings
    _check_known(settings, "settings", SamplingParams)
    seed, structured = settings.get("seed"), settings.get("structured")
    if seed is not None and (not isinstance(seed, str) or not re.fullmatch("[0-9]{1,20}", seed)):
        _refuse(f"settings.seed must be a number from 0 to {MAX_SEED}, written as text, not {show(seed)}")
    if structured is not None:
        if not isinstance(structured, dict):
            _refuse(f"settings.structured must be an object, not {show(structured)}")
        _check_known(structured, "settings.structured", StructuredOutput)
    try:
        _ = receipt.params
    except InvalidRequest as error:
        _refuse(f"its settings are wrong: {error}")


def _check_seed(receipt: Receipt) -> None:
    seed, given = receipt.seed, receipt.params.seed
    if seed > MAX_SEED:
        _refuse(f"a seed must be a number from 0 to {MAX_SEED}, written as text, not {show(str(seed))}")
    if given not in (None, seed):
        _refuse(f"its settings give the seed {given}, but {seed} was used")


def _check_known(value: dict[str, Any], path: str, kind: type) -> None:
    unknown = sorted(set(value) - {one.name for one in fields(kind)})
    if unknown:
        _refuse(f"{path} contains {show(unknown[0])}, which this version does not know")


def _check_mode(receipt: Receipt) -> None:
    """Only an aborted answer may lack the guarantee its settings ask for."""
    mode, asked = receipt.mode, receipt.params.deterministic
    if mode != "none" and not asked:
        _refuse(f"its mode is {mode}, but its settings do not ask for determinism")
    if mode == "none" and asked and all(one.finish_reason != "abort" for one in receipt.choices):
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


def _check_scores(receipt: Receipt) -> None:
    """Check the logprobs of the prompt. Without the prompt's token ids, their number is checked only by a
    replay."""
    scores, ids, params = receipt.prompt_logprobs, receipt.prompt.token_ids, receipt.params
    may_lack = receipt.is_aborted_in_prefill
    if scores is None:
        if params.prompt_logprobs is not None and len(ids or ()) > 1 and not may_lack:
            _refuse("it lacks prompt_logprobs, which its settings ask for")
        return
    if params.prompt_logprobs is None:
        _refuse("it has prompt_logprobs, which its settings do not ask for")
    first, bits = scores.first, scores.bits
    if first != 1 and not is_score(params):
        _refuse(f"prompt_logprobs.first must be 1, not {first}: the settings are not those of a score")
    if not bits:
        _refuse("prompt_logprobs must be null where there are none")
    if ids is not None:
        ids = ids[first:]
        if len(bits) > len(ids) or (len(bits) < len(ids) and not may_lack):
            _refuse(f"there are {len(bits)} prompt_logprobs, but {len(ids)} tokens from position {first} on")
        if not params.prompt_logprobs and digest_logprobs(ids[: len(bits)], bits) != scores.digest:
            _refuse("the digest of prompt_logprobs is not that of their bits")
