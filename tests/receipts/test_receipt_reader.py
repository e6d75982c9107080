"""Receipts from strangers: every lie and every oddity is one clear error, and nothing hangs."""

import contextlib
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SamplingParams
from holdfast.errors import InvalidRequest
from holdfast.receipts.fingerprint import digest_of
from holdfast.receipts.reader import MAX_BYTES, read_receipt
from holdfast.receipts.receipt import digest_logprobs
from support.receipts import receipt_of

GOOD = receipt_of(SamplingParams(deterministic=True, n=2, prompt_logprobs=0), (4, 5), (6, 7), scored=1)


def changed(path: str, value: Any) -> str:
    """The good receipt with one place changed; "a.0.b" walks down."""
    receipt = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    at: Any = receipt
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(receipt)


def refused(source: str | bytes | Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_receipt(source)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def test_the_good_one_is_good(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(GOOD, indent=2))
    for source in (json.dumps(GOOD), json.dumps(GOOD).encode(), file):
        assert read_receipt(source).as_dict() == GOOD


def test_a_receipt_inside_an_answer() -> None:
    assert read_receipt(json.dumps({"text": "x", "receipt": GOOD})).as_dict() == GOOD
    assert "no object with a format" in refused(json.dumps({"text": "x", "receipt": None}))


def test_a_receipt_on_each_line(tmp_path: Path) -> None:
    other = {**GOOD, "seed": "12"}
    text = f"{json.dumps(GOOD)}\n{json.dumps(other)}\n"
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
def test_what_is_no_receipt_at_all(text: str | bytes) -> None:
    refused(text)


@pytest.mark.parametrize("format_", ["holdfast-receipt/2", "", None, 1, ["holdfast-receipt/1"], {}])
def test_another_format(format_: Any) -> None:
    assert "this version reads holdfast-receipt/1" in refused(changed("format", format_))


@pytest.mark.parametrize(("old", "new"), [("compiled", "c"), ("library", "torch")])
def test_kernels_of_older_receipts_are_normalised(old: str, new: str) -> None:
    assert read_receipt(changed("engine.kernels", old)).engine.kernels == new


@pytest.mark.parametrize("key", [key for key in GOOD if key != "format"])
def test_every_part_is_needed_and_no_other_known(key: str) -> None:
    assert f"it lacks {key}" in refused(json.dumps({name: GOOD[name] for name in GOOD if name != key}))
    assert "holds 'signature'" in refused(json.dumps({**GOOD, "signature": "trust me"}))


WRONG: list[tuple[str, Any, str]] = [
    ("mode", "sworn", "mode must be one of certified, verified, none"),
    ("mode", None, "mode must be one of"),
    ("mode", "none", "mode is none, but its settings ask for determinism"),
    ("fingerprint", [], "fingerprint must be an object"),
    ("fingerprint.digest", "0" * 64, "digest is not that of its parts"),
    ("fingerprint.digest", "0" * 63, "64 hexadecimal digits"),
    ("fingerprint.parts", 3, "parts must be an object"),
    ("fingerprint.parts.settings.threads", 3, "digest is not that of its parts"),
    ("certificate", "A" * 64, "certificate must be 64 hexadecimal digits"),
    ("certificate", "a" * 64 + "\n", "certificate must be 64 hexadecimal digits"),
    ("engine", None, "engine must be an object"),
    ("engine.model", 3, "model must be a text"),
    ("engine.model", "", "model must be a text"),
    ("engine.model", "x" * 5000, "at most 4096 characters"),
    ("engine.dtype", "float64", "dtype must be one of"),
    ("engine.kernels", "rm -rf", "kernels must be one of"),
    ("engine.num_threads", 0, "num_threads must be a whole number from 1"),
    ("engine.num_threads", 10**9, "num_threads must be a whole number from 1"),
    ("engine.num_threads", 2.0, "num_threads must be a whole number from 1"),
    ("engine.num_threads", True, "num_threads must be a whole number from 1"),
    ("engine.shell", "sh", "engine holds 'shell'"),
    ("prompt", {}, "prompt lacks digest"),
    ("prompt.digest", "0" * 64, "prompt's digest is not that of its token ids"),
    ("prompt.token_ids", [1, 2], "prompt's digest is not that of its token ids"),
    ("prompt.token_ids", [1, 2, -3], "token id of the prompt must be a whole number"),
    ("prompt.token_ids", [1, 2, 1 << 31], "token id of the prompt"),
    ("prompt.token_ids", [1, 2, "3"], "token id of the prompt"),
    ("prompt.token_ids", [1, 2, 3.0], "token id of the prompt"),
    ("prompt.token_ids", "123", "the prompt must be a list"),
    ("settings", None, "settings must be an object"),
    ("settings.magic", 1, "settings holds 'magic', which this version does not know"),
    ("settings.temperature", "hot", "temperature must be a number"),
    ("settings.temperature", -1, "temperature must be a finite number"),
    ("settings.max_tokens", 1.5, "max_tokens must be a whole number"),
    ("settings.max_tokens", 10**12, "max_tokens must be from"),
    ("settings.n", 1, "choices must be a list of at most 1"),
    ("settings.deterministic", False, "mode is verified, but its settings do not ask for that"),
    ("settings.deterministic", "yes", "deterministic must be true or false"),
    ("settings.seed", 7, "a seed must be a number"),
    ("settings.seed", "-7", "a seed must be a number"),
    ("settings.seed", "7", "settings give the seed 7, but 11 was used"),
    ("settings.logit_bias", {"5": 1.0}, "token id of logit_bias"),
    ("settings.logit_bias", [[1]], "is no such pair"),
    ("settings.stop", [""], "non-empty string"),
    ("settings.stop", 3, "stop must be a string or a list"),
    ("settings.structured", "yes", "the structured form must be an object"),
    ("settings.structured", {}, "needs exactly one of"),
    ("settings.structured", {"regex": "a", "lark": "b"}, "needs exactly one of"),
    ("settings.structured", {"python": "exec"}, "the structured form holds 'python'"),
    ("settings.structured", {"regex": 3}, "regex must be a text"),
    ("settings.structured", {"json_schema": "[" * 100_000}, "not valid JSON"),
    ("seed", 11, "a seed must be a number"),
    ("seed", "99999999999999999999", "a seed must be a number"),
    ("seed", "\u0661", "a seed must be a number"),
    ("seed", "1\n", "a seed must be a number"),
    ("choices", [], "holds no choice"),
    ("choices", {}, "choices must be a list"),
    ("choices.1", None, "a choice must be an object"),
    ("choices.1.finish_reason", "bored", "finish_reason must be one of"),
    ("choices.1.finish_reason", "error", "finish_reason must be one of stop, length, abort, not 'error'"),
    ("choices.1.token_ids", [6], "1 tokens and 2 logprobs"),
    ("choices.1.token_ids", [6, 8], "digest of a choice's logprobs is not that of their bits"),
    ("choices.1.token_ids", [6, None], "token id of a choice"),
    ("choices.1.logprobs", None, "a choice lacks logprobs, which every deterministic answer has"),
    ("choices.1.logprobs", [], "logprobs must be an object"),
    ("choices.1.logprobs.bits", ["00000000"] * 2, "digest of a choice's logprobs is not that of their bits"),
    ("choices.1.logprobs.bits", ["0000000"] * 2, "8 hexadecimal digits"),
    ("choices.1.logprobs.bits", ["0000000\n"] * 2, "8 hexadecimal digits"),
    ("choices.1.logprobs.bits", [0, 0], "8 hexadecimal digits"),
    ("choices.1.logprobs.digest", "0" * 64, "digest of a choice's logprobs is not that of their bits"),
    ("prompt_logprobs", {"bits": []}, "prompt_logprobs lacks first"),
    ("prompt_logprobs.first", 0, "the first of prompt_logprobs must be"),
    ("prompt_logprobs.first", 2, "must be a whole number from 1 to 1, not 2"),
    ("prompt_logprobs", None, "it lacks prompt_logprobs, which its settings ask for"),
    ("settings.prompt_logprobs", None, "it has prompt_logprobs, which its settings do not ask for"),
    ("prompt_logprobs.bits", [], "prompt_logprobs must be null where there are none"),
    ("prompt_logprobs.bits", ["bf000000"], "there are 1 prompt_logprobs, but 2 tokens from position 1 on"),
    ("prompt_logprobs.bits", ["bf000000"] * 3, "there are 3 prompt_logprobs, but 2 tokens from position 1 on"),
    ("prompt_logprobs.digest", "0" * 64, "digest of prompt_logprobs is not that of their bits"),
    ("prompt_logprobs.bits", ["00000000"] * 2, "digest of prompt_logprobs is not that of their bits"),
    ("prompt_logprobs.bits", 8, "prompt_logprobs must be a list"),
    ("counts", None, "counts must be an object"),
    ("counts.accepted", -1, "the count 'accepted' must be"),
    ("counts", {str(n): n for n in range(99)}, "counts must be an object of at most 64"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "said"), WRONG, ids=[f"{path}={value!r:.20}" for path, value, _ in WRONG]
)
def test_every_lie_is_named(path: str, value: Any, said: str) -> None:
    assert said in refused(changed(path, value))


def test_a_score_may_begin_anywhere_and_ends_with_its_prompt() -> None:
    score = receipt_of(
        SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0, deterministic=True), (), scored=2
    )
    read = read_receipt(json.dumps(score)).prompt_logprobs
    assert read is not None
    assert (read.first, len(read.logprobs.bits)) == (2, 1)
    shifted = {**score, "prompt_logprobs": {**score["prompt_logprobs"], "first": 1}}
    assert "there are 1 prompt_logprobs, but 2 tokens from position 1 on" in refused(json.dumps(shifted))
    shifted["prompt_logprobs"] = {**score["prompt_logprobs"], "digest": "0" * 64}
    assert "digest of prompt_logprobs is not that of their bits" in refused(json.dumps(shifted))


def test_who_left_while_the_prompt_was_read_has_part_of_its_logprobs() -> None:
    left = {"token_ids": [], "finish_reason": "abort", "logprobs": {"bits": [], "digest": digest_of([])}}
    bits = GOOD["prompt_logprobs"]["bits"][:1]
    part = {"first": 1, "bits": bits, "digest": digest_logprobs([2], bits)}
    for scores in (None, part, GOOD["prompt_logprobs"]):
        read_receipt(json.dumps({**GOOD, "choices": [left, left], "prompt_logprobs": scores}))
    read_receipt(json.dumps({**GOOD, "mode": "none", "choices": [left, left]}))
    assert "lacks prompt_logprobs" in refused(
        json.dumps({**GOOD, "choices": [GOOD["choices"][0], left], "prompt_logprobs": None})
    )


def test_a_prompt_of_one_token_has_no_logprobs() -> None:
    one = {**GOOD, "prompt": {"token_ids": [1], "digest": digest_of([1])}, "prompt_logprobs": None}
    assert read_receipt(json.dumps(one)).prompt_logprobs is None


def test_a_setting_this_receipt_did_not_know_has_its_default() -> None:
    settings = {name: value for name, value in GOOD["settings"].items() if name not in ("echo", "structured")}
    assert read_receipt(json.dumps({**GOOD, "settings": settings})).params.echo is False


def test_a_receipt_that_is_too_large() -> None:
    assert "larger than 32 MiB" in refused(" " * (MAX_BYTES + 1))


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path("/dev/zero"), Path("a\0b"), Path("x" * 5000)):
        assert "receipt" in refused(path)
    os.mkfifo(tmp_path / "pipe")
    assert "there is no receipt" in refused(tmp_path / "pipe")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES * 100)
    assert "larger than" in refused(large)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([path for path, _, _ in WRONG]),
)
def test_anything_anywhere_is_read_or_refused(value: Any, path: str) -> None:
    with contextlib.suppress(InvalidRequest):
        read_receipt(changed(path, value))
