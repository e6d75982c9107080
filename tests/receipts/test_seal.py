"""The seal covers every field, and the signature catches a forger who makes the seal anew."""

import base64
import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.errors import InvalidRequest
from holdfast.receipts.check import check_content, check_signature
from holdfast.receipts.reader import parse_receipt, read_receipt
from holdfast.receipts.receipt import digest_logprobs, redact, seal_of
from holdfast.receipts.signing import PublicKey, SigningKey
from support.receipts import (
    FieldPath,
    at,
    edits,
    leaves,
    other_value,
    prompt_of,
    receipt_of,
    resealed,
)

KEY, OTHER_KEY = SigningKey.generate(), SigningKey.generate()
PARAMS = SamplingParams(
    deterministic=True,
    n=2,
    prompt_logprobs=2,
    logprobs=3,
    seed=11,
    stop=["a"],
    logit_bias={3: 0.5},
    forced_thoughts={0: (7, 8)},
)
SIGNED = receipt_of(PARAMS, (4, 5), (6, 7), key=KEY)
UNSIGNED = receipt_of(PARAMS, (4, 5), (6, 7))


def is_sealed(path: FieldPath) -> bool:
    return path[:1] not in (("seal",), ("signature",))


def test_every_edit_is_refused() -> None:
    count = 0
    for path, changed in edits(UNSIGNED):
        count += 1
        with pytest.raises(InvalidRequest):
            read_receipt(json.dumps(changed))
        if path != ("format",):
            assert check_content(changed, None).problem is not None, path
    assert count > 200


def test_every_edit_breaks_the_seal_of_a_redacted_receipt() -> None:
    redacted = redact(UNSIGNED)
    for path, changed in edits(redacted):
        if is_sealed(path) and path[:1] not in (("prompt",), ("format",)):
            assert check_content(changed, None).seal == "broken", path
        with pytest.raises(InvalidRequest):
            parse_receipt(changed)


def test_the_seal_covers_what_no_other_check_covers() -> None:
    """These edits passed unnoticed before there was a seal."""
    for path in (
        ("counts", "fast_passes"),
        ("certificate",),
        ("engine", "model"),
        ("engine", "num_threads"),
        ("machine", "holdfast"),
    ):
        changed = copy.deepcopy(UNSIGNED)
        at(changed, path[:-1])[path[-1]] = other_value(at(UNSIGNED, path))
        with pytest.raises(InvalidRequest, match="its seal is broken"):
            parse_receipt(changed)
        assert parse_receipt(resealed(changed)), path


def test_signature_catches_a_forger_who_reseals() -> None:
    key = KEY.public_key
    assert check_signature(parse_receipt(SIGNED), key).signature == "valid"
    count = 0
    for path, changed in edits(SIGNED):
        try:
            forged = resealed(changed) if is_sealed(path) else changed
            read = parse_receipt(forged)
        except (InvalidRequest, ValueError, KeyError, TypeError):
            continue  # it contradicts itself
        count += 1
        with pytest.raises(
            InvalidRequest, match=r"its signature is wrong|signed with another key|is not signed"
        ):
            check_signature(read, key)
        assert check_content(forged, key).problem is not None
    assert count > 50


def test_signature_cannot_be_dropped_or_moved() -> None:
    key = KEY.public_key
    bare = {**SIGNED, "signature": None}
    with pytest.raises(InvalidRequest, match="a signer and a signature, or neither"):
        parse_receipt(bare)
    with pytest.raises(InvalidRequest, match="it is not signed"):
        check_signature(parse_receipt(resealed(bare, signer=None)), key)
    other = receipt_of(PARAMS, (4, 9), (6, 7), key=KEY)
    with pytest.raises(InvalidRequest, match="its signature is wrong"):
        check_signature(parse_receipt({**other, "signature": SIGNED["signature"]}), key)
    foreign = receipt_of(PARAMS, (4, 5), (6, 7), key=OTHER_KEY)
    with pytest.raises(InvalidRequest, match="it is signed with another key"):
        check_signature(parse_receipt(foreign), key)
    claimed = resealed(foreign, signer=SIGNED["signer"])
    with pytest.raises(InvalidRequest, match="its signature is wrong"):
        check_signature(parse_receipt(claimed), key)


def test_same_content_has_the_same_signature() -> None:
    assert KEY.sign(SIGNED["seal"]) == SIGNED["signature"]
    assert len(base64.b64decode(SIGNED["signature"])) == 64


@pytest.mark.parametrize("keep_salt", [False, True])
def test_redaction_keeps_seal_and_signature(keep_salt: bool) -> None:
    redacted = redact(SIGNED, keep_salt=keep_salt)
    assert (
        check_signature(parse_receipt(redacted), KEY.public_key).describe() == "seal intact, signature valid"
    )
    text = json.dumps(redacted)
    assert (SIGNED["prompt"]["salt"] in text) == keep_salt
    with pytest.raises(InvalidRequest, match="prompt's digest"):
        parse_receipt({**SIGNED, "prompt": {**SIGNED["prompt"], "token_ids": [9]}})
    with pytest.raises(InvalidRequest, match="its seal is broken"):
        parse_receipt({**SIGNED, "prompt": prompt_of([1, 2, 3])})


def test_rewriting_keeps_the_seal() -> None:
    """Key order, spaces, escapes and the notation of numbers do not count."""
    text = (
        json.dumps(dict(reversed(SIGNED.items())), indent=3)
        .replace("0.5", "5.0E-1")
        .replace('"a"', '"\\u0061"')
    )
    assert "5.0E-1" in text and "\\u0061" in text
    assert check_signature(read_receipt(text), KEY.public_key).signature == "valid"


def test_states_without_a_key() -> None:
    states = [(one.seal, one.signature) for one in map(check, (SIGNED, UNSIGNED))]
    assert states == [("intact", "not checked"), ("intact", "absent")]
    said = [check(one).describe() for one in (SIGNED, UNSIGNED)]
    assert said == ["seal intact, signature not checked", "seal intact, not signed"]


def check(content: dict[str, Any]) -> Any:
    checked = check_signature(parse_receipt(content), None)
    assert checked == check_content(content, None)
    return checked


def test_random_mutations_are_read_or_refused() -> None:
    """Values moved, copied and swapped inside a receipt, and text cut and changed."""
    rng = random.Random(7)
    paths = [path for path in leaves(SIGNED) if path]
    text = json.dumps(SIGNED)
    for _ in range(150):
        changed = copy.deepcopy(SIGNED)
        for _ in range(rng.randint(1, 4)):
            source, target = rng.choice(paths), rng.choice(paths)
            place: Any = changed
            try:
                for step in target[: rng.randint(0, len(target) - 1)]:
                    place = place[step]
                assert isinstance(place, list) == isinstance(target[-1], int)
                place[target[-1]] = copy.deepcopy(at(SIGNED, source[: rng.randint(1, len(source))]))
            except (KeyError, IndexError, TypeError, AssertionError):
                continue
        if rng.random() < 0.5:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                changed["seal"] = seal_of(changed)
        _read_or_refuse(changed)
        place_in_text = rng.randrange(len(text))
        cut = (
            text[:place_in_text]
            + rng.choice(["", "0", '"', "}", "null", "\u00fc"])
            + text[place_in_text + 1 :]
        )
        try:
            read_receipt(cut)
        except InvalidRequest:
            continue
        assert json.loads(cut)["seal"] == SIGNED["seal"]


def _read_or_refuse(changed: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_receipt(changed)
    if changed["format"] == SIGNED["format"]:
        check_content(changed, KEY.public_key)


def test_digests_stay_those_of_the_documented_text() -> None:
    """A change here would break every receipt that was ever made."""
    assert (
        digest_logprobs([4], ["bf000000"])
        == "c9a2003ab9a319f3071c396c495ab3790f3e64905ce6ee765d9c82ea4bbabc5d"
    )
    assert (
        prompt_of([1, 2, 3])["digest"] == "3aa45ac09a60dda2920ff876fa60417397086e4d97cdf4277e7f221efcaf1751"
    )


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read = SigningKey.read(path)
    assert read.key_id == KEY.key_id == PublicKey.read(path).key_id
    assert repr(read) == f"SigningKey({KEY.key_id})"
    public = tmp_path / "public.pem"
    public.write_text(KEY.public_key.pem)
    assert PublicKey.read(public).verifies(SIGNED["seal"], SIGNED["signature"])
    assert not PublicKey.read(public).verifies(SIGNED["seal"], "not base64")
    with pytest.raises(InvalidRequest, match="exists already"):
        KEY.write(path)
