"""Untrusted receipts: everything wrong is one clear error, and nothing hangs."""

import contextlib
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.errors import InvalidRequest
from holdfast.receipts.canonical_json import digest_of
from holdfast.receipts.reader import MAX_BYTES, read_receipt
from holdfast.receipts.receipt import digest_logprobs
from support.receipts import prompt_of, receipt_of, resealed

VALID = receipt_of(SamplingParams(deterministic=True, n=2, prompt_logprobs=0), (4, 5), (6, 7), scored=1)


def changed(path: str, value: Any) -> str:
    """The valid receipt with one value changed; `path` is like "a.0.b"."""
    receipt = copy.deepcopy(VALID)
    *names, last = path.split(".")
    at: Any = receipt
    for step in names:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    with contextlib.suppress(ValueError, TypeError, KeyError):  # a change that has no seal
        receipt = receipt if path in ("seal", "prompt") else resealed(receipt)
    return json.dumps(receipt)


def refused(source: str | bytes | Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_receipt(source)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def test_valid_receipt_is_read(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(VALID, indent=2))
    for source in (json.dumps(VALID), json.dumps(VALID).encode(), file):
        assert read_receipt(source).as_dict() == VALID


def test_receipt_inside_a_response_is_read() -> None:
    assert read_receipt(json.dumps({"text": "x", "receipt": VALID})).as_dict() == VALID
    assert read_receipt(json.dumps({"choices": [], "holdfast": {"receipt": VALID}})).as_dict() == VALID
    assert "not an object with a format" in refused(json.dumps({"text": "x", "receipt": None}))
    assert "holdfast generate --json --receipt -" in refused(json.dumps({"text": "x", "token_ids": [1]}))
    assert "return_receipt" in refused(json.dumps({"choices": [], "holdfast": {"mode": "certified"}}))


def test_line_selects_one_of_several_receipts(tmp_path: Path) -> None:
    other = resealed(VALID, seed="12")
    text = f"{json.dumps(VALID)}\n{json.dumps(other)}\n"
    file = tmp_path / "receipts.jsonl"
    file.write_text(text)
    for source in (text, text.encode(), file):
        assert [read_receipt(source, line).seed for line in (1, 2)] == [11, 12]
        assert "say which line" in refused(source)
    for line in (0, -1, 3):
        with pytest.raises(InvalidRequest, match=f"there is no line {line}; there are 2"):
            read_receipt(text, line)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "nonsense", "null", "3", '"x"', "[]", "{}", "[" * 100_000, '{"a":' * 100_000, "\udcff", "NaN",
        '{"format": NaN}', '{"format": 1e999}', '{"format": -Infinity}', "9" * 10_000, '{"a": 1, "a": 2}',
        b"\xff\xfe\x00", b"\x80", b"PK\x03\x04", json.dumps({"format": "\ud800"}), '{"format":' + "[" * 900 + "]" * 900 + "}",
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_malformed_text_is_refused(text: str | bytes) -> None:
    refused(text)


@pytest.mark.parametrize(
    "format_", ["holdfast-receipt/1", "holdfast-receipt/3", "", None, 1, ["holdfast-receipt/2"], {}]
)
def test_other_format_is_refused(format_: Any) -> None:
    assert "this version reads holdfast-receipt/2" in refused(changed("format", format_))


@pytest.mark.parametrize("key", [key for key in VALID if key != "format"])
def test_missing_and_unknown_fields_are_refused(key: str) -> None:
    assert f"missing required field `{key}`" in refused(
        json.dumps({name: VALID[name] for name in VALID if name != key})
    )
    assert "unknown field `oath`" in refused(json.dumps({**VALID, "oath": "trust me"}))


WRONG: list[tuple[str, Any, str]] = [
    ("mode", "sworn", "mode: invalid enum value 'sworn'; expected one of certified, verified, none"),
    ("mode", "none", "mode is none, but its settings ask for determinism"),
    ("fingerprint.digest", "0" * 64, "digest is not that of its parts"),
    ("fingerprint.digest", "0" * 63, "fingerprint.digest: expected 64 hexadecimal digits, not '000"),
    ("fingerprint.parts.settings.threads", 3, "digest is not that of its parts"),
    ("certificate", "a" * 64 + "\n", "certificate: expected 64 hexadecimal digits, not"),
    ("engine.model", "", "engine.model: expected `str` of length >= 1, not ''"),
    ("engine.model", "x" * 5000, "engine.model: expected `str` of length <= 4096, not 'xxx"),
    ("engine.dtype", "float64", "engine.dtype: invalid enum value 'float64'; expected one of bfloat16, float16, float32"),
    ("engine.kernels", "rm -rf", "engine.kernels must be one of"),
    ("engine.num_threads", 0, "engine.num_threads: expected `int` >= 1, not 0"),
    ("engine.num_threads", 10**9, "engine.num_threads: expected `int` <= 1024, not 1000000000"),
    ("engine.shell", "sh", "engine: object contains unknown field `shell`"),
    ("prompt.digest", "0" * 64, "prompt's digest is not that of its token ids"),
    ("prompt.token_ids", [1, 2], "prompt's digest is not that of its token ids"),
    ("prompt.token_ids", [1, 2, -3], "prompt.token_ids[2]: expected `int` >= 0, not -3"),
    ("prompt.token_ids", [1, 2, 1 << 31], "prompt.token_ids[2]: expected `int` <= 2147483647, not 2147483648"),
    ("prompt.salt", "0" * 32, "prompt's digest is not that of its token ids"),
    ("prompt.salt", None, "the prompt has token ids, but no salt"),
    ("prompt.salt", "0" * 31, "prompt.salt: expected 32 hexadecimal digits, not '000"),
    ("machine.cpu", "x" * 300, "machine.cpu: expected `str` of length <= 256, not 'xxx"),
    ("machine.kernels", "none", "machine.kernels: expected 64 hexadecimal digits, not 'none'"),
    ("signer", {"algorithm": "rsa", "key_id": "0" * 64}, "signer.algorithm: invalid enum value 'rsa'"),
    ("signer", {"algorithm": "ed25519", "key_id": "0" * 64}, "it must have a signer and a signature, or neither"),
    ("signature", "A" * 86 + "==", "it must have a signer and a signature, or neither"),
    ("signature", "A" * 85 + "B==", "signature: expected `str` matching regex"),
    ("seal", "0" * 64, "its seal is broken: something was changed after it was made"),
    ("fingerprint.parts.x", (1 << 53) + 1, "fingerprint: it has no digest: it has a number that is no double"),
    ("settings.__class__", "x", "settings contains '__class__', which this version does not know"),
    ("settings.temperature", -1, "temperature must be a finite number"),
    ("settings.n", 10**9, "n must be from"),
    ("settings.n", 1, "it has 2 choices, but its settings ask for 1"),
    ("settings.n", 3, "it has 2 choices, but its settings ask for 3"),
    ("settings.deterministic", False, "mode is verified, but its settings do not ask for determinism"),
    ("settings.seed", 7, "settings.seed must be a number"),
    ("settings.seed", "-7", "settings.seed must be a number"),
    ("settings.seed", "7", "settings give the seed 7, but 11 was used"),
    ("settings.logit_bias", {"5": 1.0}, "token id of logit_bias"),
    ("settings.logit_bias", [[5, "x"]], "logit_bias must be a number"),
    ("settings.logit_bias", [[1]], "is no such pair"),
    ("settings.stop", ["a" * 1_000_000], "a string of stop has 1000000 characters"),
    ("settings.bad_words", ["a" * 4096] * 1024, "bad_words is too large"),
    ("settings.structured", "yes", "settings.structured must be an object"),
    ("settings.structured", {"regex": "a", "lark": "b"}, "needs exactly one of"),
    ("settings.structured", {"python": "exec"}, "settings.structured contains 'python'"),
    ("settings.structured", {"json_schema": "[" * 100_000}, "not valid JSON"),
    ("seed", "99999999999999999999", "a seed must be a number"),
    ("seed", "\u0661", "seed: expected `str` matching regex"),
    ("seed", "1\n", "seed: expected `str` matching regex"),
    ("choices", [], "choices: expected `array` of length >= 1, not []"),
    ("choices.1.finish_reason", "error", "invalid enum value 'error'; expected one of stop, length, abort"),
    ("choices.1.token_ids", [6], "1 tokens and 2 logprobs"),
    ("choices.1.token_ids", [6, 8], "digest of a choice's logprobs is not that of their bits"),
    ("choices.1.logprobs", None, "a choice lacks logprobs, which every deterministic answer has"),
    ("choices.1.logprobs.bits", ["00000000"] * 2, "digest of a choice's logprobs is not that of their bits"),
    ("choices.1.logprobs.bits", ["0000000"] * 2, "choices[1].logprobs.bits[0]: expected 8 hexadecimal digits, not '0000000'"),
    ("choices.1.logprobs.bits", ["0000000\n"] * 2, "choices[1].logprobs.bits[0]: expected 8 hexadecimal digits"),
    ("choices.1.logprobs.digest", "0" * 64, "digest of a choice's logprobs is not that of their bits"),
    ("prompt_logprobs.first", 0, "prompt_logprobs.first: expected `int` >= 1, not 0"),
    ("prompt_logprobs.first", 2, "prompt_logprobs.first must be 1, not 2"),
    ("prompt_logprobs", None, "it lacks prompt_logprobs, which its settings ask for"),
    ("settings.prompt_logprobs", None, "it has prompt_logprobs, which its settings do not ask for"),
    ("prompt_logprobs.bits", [], "prompt_logprobs must be null where there are none"),
    ("prompt_logprobs.bits", ["bf000000"], "there are 1 prompt_logprobs, but 2 tokens from position 1 on"),
    ("prompt_logprobs.bits", ["bf000000"] * 3, "there are 3 prompt_logprobs, but 2 tokens from position 1 on"),
    ("prompt_logprobs.digest", "0" * 64, "digest of prompt_logprobs is not that of their bits"),
    ("prompt_logprobs.bits", ["00000000"] * 2, "digest of prompt_logprobs is not that of their bits"),
    ("choices.1.thoughts", None, "thoughts of a choice must be a list"),
    ("choices.1.thoughts", [[0, [1]], [0, [1]]], "chunks of a choice's thoughts are not in order"),
    ("choices.1.thoughts", [[0]], "choices[1].thoughts[0]: expected `array` of length 2"),
    ("choices.1.thoughts", [[1, 2]], "choices[1].thoughts[0][1]: expected `array`"),
    ("choices.1.thoughts", [[0, [-5]]], "choices[1].thoughts[0][1][0]: expected `int` >= 0, not -5"),
    ("choices.1.thoughts", [[-1, []]], "choices[1].thoughts[0][0]: expected `int` >= 0, not -1"),
    ("counts.accepted", -1, "counts[...]: expected `int` >= 0"),
    ("counts", {str(n): n for n in range(99)}, "counts: expected `object` of length <= 64, not {"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "reason"), WRONG, ids=[f"{path}={value!r:.20}" for path, value, _ in WRONG]
)
def test_wrong_value_is_refused_with_its_field(path: str, value: Any, reason: str) -> None:
    assert reason in refused(changed(path, value))


FOREIGN = (None, -1, 1 << 70, 0.5, "x", [], {}, [[1 << 40]], {"a": {"b": []}}, True)


@pytest.mark.parametrize("key", VALID)
def test_foreign_value_in_any_field_is_refused(key: str) -> None:
    """Except null for the certificate, and empty counts."""
    allowed = {"certificate": [None], "counts": [{}]}.get(key, [])
    for value in (one for one in FOREIGN if one != VALID[key] and one not in allowed):
        refused(changed(key, value))
    for value in allowed:
        read_receipt(changed(key, value))


def test_score_logprobs_start_anywhere_and_end_with_the_prompt() -> None:
    score = receipt_of(
        SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0, deterministic=True), (), scored=2
    )
    read = read_receipt(json.dumps(score)).prompt_logprobs
    assert read is not None
    assert (read.first, len(read.bits)) == (2, 1)
    shifted = {**score, "prompt_logprobs": {**score["prompt_logprobs"], "first": 1}}
    assert "there are 1 prompt_logprobs, but 2 tokens from position 1 on" in refused(json.dumps(shifted))
    shifted["prompt_logprobs"] = {**score["prompt_logprobs"], "digest": "0" * 64}
    assert "digest of prompt_logprobs is not that of their bits" in refused(json.dumps(shifted))


def test_abort_in_prefill_may_lack_prompt_logprobs() -> None:
    left = {"token_ids": [], "finish_reason": "abort", "logprobs": {"bits": [], "digest": digest_of([])}}
    bits = VALID["prompt_logprobs"]["bits"][:1]
    part = {"first": 1, "bits": bits, "digest": digest_logprobs([2], bits)}
    for scores in (None, part, VALID["prompt_logprobs"]):
        read_receipt(json.dumps(resealed(VALID, choices=[left, left], prompt_logprobs=scores)))
    read_receipt(json.dumps(resealed(VALID, mode="none", choices=[left, left])))
    assert "it lacks prompt_logprobs" in refused(
        json.dumps({**VALID, "choices": [VALID["choices"][0], left], "prompt_logprobs": None})
    )


def test_one_token_prompt_has_no_prompt_logprobs() -> None:
    one = resealed(VALID, prompt=prompt_of([1]), prompt_logprobs=None)
    assert read_receipt(json.dumps(one)).prompt_logprobs is None


def test_missing_setting_has_its_default() -> None:
    settings = {
        name: value for name, value in VALID["settings"].items() if name not in ("echo", "structured")
    }
    assert read_receipt(json.dumps(resealed(VALID, settings=settings))).params.echo is False


def test_too_large_receipt_is_refused() -> None:
    assert "larger than 32 MiB" in refused(" " * (MAX_BYTES + 1))


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system has no /dev/fd")
def test_receipt_is_read_from_a_pipe_of_the_shell() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write(json.dumps(VALID))
    assert read_receipt(Path(f"/dev/fd/{reading}")).as_dict() == VALID
    os.close(reading)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path("/dev/zero"), Path("a\0b"), Path("x" * 5000)):
        assert "receipt" in refused(path)
    os.mkfifo(tmp_path / "pipe")
    assert "there is no receipt" in refused(tmp_path / "pipe")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES * 100)
    assert "larger than" in refused(large)


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "extra`\nsignature  valid", "long" * 400])
def test_name_of_an_unknown_field_is_printed_on_one_line(name: str) -> None:
    for receipt in ({**VALID, name: 1}, {**VALID, "engine": {**VALID["engine"], name: 1}}):
        message = refused(json.dumps(receipt))
        assert message.isprintable() and "unknown field" in message


_FIRST_READERS = """
import json, sys, threading
from holdfast.receipts.reader import parse_receipt
content, start = json.load(open(sys.argv[1])), threading.Barrier(8)
sys.setswitchinterval(1e-7)
def read():
    start.wait()
    parse_receipt(content)
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""


def test_first_receipts_may_be_read_by_several_threads() -> None:
    """A server reads receipts in threads; the types are described before."""
    path = Path(__file__).parents[1] / "determinism" / "receipts" / "aarch64.json"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", _FIRST_READERS, str(path)], check=True, timeout=60)
