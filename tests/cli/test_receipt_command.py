"""`holdfast receipt`: check, redact, keygen, public-key."""

import json
import shutil
import subprocess

import pytest

from holdfast import SamplingParams
from holdfast.receipts.signing import PublicKey, SigningKey
from support.receipts import receipt_of, resealed

PARAMS = SamplingParams(deterministic=True)


@pytest.fixture
def key(tmp_path):
    SigningKey.generate().write(tmp_path / "key.pem")
    return tmp_path / "key.pem"


@pytest.fixture
def public(holdfast, key, tmp_path):
    file = tmp_path / "public.pem"
    file.write_text(holdfast("receipt", "public-key", key).stdout)
    return file


@pytest.fixture
def signed(key):
    return receipt_of(PARAMS, key=SigningKey.read(key))


def test_check_says_what_it_checked(holdfast, signed, public):
    key_id = signed["signer"]["key_id"]
    result = holdfast("receipt", "check", "-", "--public-key", public, stdin=json.dumps(signed))
    assert result.stdout == (
        f"format     holdfast-receipt/2\nseal       intact\nsignature  valid\nkey id     {key_id}\n"
    )
    for receipt, seal, signature in (
        (signed, "intact", "not checked"),
        (receipt_of(PARAMS), "intact", "absent"),
    ):
        result = holdfast("receipt", "check", "-", "--json", stdin=json.dumps(receipt))
        said = json.loads(result.stdout)
        assert said["ok"] is True
        assert (said["seal"], said["signature"]) == (seal, signature)


def test_check_names_what_is_wrong_and_exits_with_1(holdfast, signed, public):
    other = receipt_of(PARAMS, key=SigningKey.generate())
    for receipt, options, lines in (
        ({**signed, "seed": "12"}, (), ("seal       broken", "its seal is broken")),
        ({**signed, "counts": {}}, ("--public-key", public), ("seal       broken", "signature  invalid")),
        (
            resealed(signed, counts={}),
            ("--public-key", public),
            ("seal       intact", "signature  invalid", "did not sign this seal"),
        ),
        (other, ("--public-key", public), ("signature  other key", "signed with another key")),
        (receipt_of(PARAMS), ("--public-key", public), ("signature  absent", "it is not signed")),
        ({**signed, "seed": 5}, (), ("seed: expected `str`",)),
    ):
        result = holdfast("receipt", "check", "-", *options, stdin=json.dumps(receipt), code=1)
        assert all(line in result.stdout for line in lines), result.stdout


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "holdfast-receipt/9"}'])
def test_what_is_no_receipt_exits_with_2(holdfast, text):
    result = holdfast("receipt", "check", "-", stdin=text, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: the receipt cannot be used")


def test_wrong_public_key_exits_with_2(holdfast, signed, tmp_path):
    file = tmp_path / "wrong.pem"
    file.write_text("hello")
    for path in (file, tmp_path / "nowhere"):
        result = holdfast("receipt", "check", "-", "--public-key", path, stdin=json.dumps(signed), code=2)
        assert result.stdout == ""
        assert "public key" in result.stderr


def test_redacted_receipt_is_still_valid(holdfast, signed, public):
    for options, salt in (((), None), (("--keep-salt",), signed["prompt"]["salt"])):
        redacted = holdfast("receipt", "redact", "-", *options, stdin=json.dumps(signed)).stdout
        assert json.loads(redacted)["prompt"] == {**signed["prompt"], "token_ids": None, "salt": salt}
        holdfast("receipt", "check", "-", "--public-key", public, stdin=redacted)


def test_redact_says_what_stays(holdfast):
    whole = receipt_of(SamplingParams(deterministic=True, prompt_logprobs=0))
    assert "guesses of the prompt" in holdfast("receipt", "redact", "-", stdin=json.dumps(whole)).stderr
    broken = json.dumps({**whole, "seed": "12"})
    holdfast("receipt", "redact", "-", stdin=broken, code=2)


def test_key_is_made_once(holdfast, tmp_path):
    file = tmp_path / "new.pem"
    made = holdfast("receipt", "keygen", file)
    key_id = PublicKey.parse(made.stdout.encode()).key_id
    assert key_id in made.stderr.replace("\n", "")
    assert holdfast("receipt", "public-key", file).stdout == made.stdout
    again = holdfast("receipt", "keygen", file, code=2)
    assert "a key is never overwritten" in again.stderr
    assert SigningKey.read(file).key_id == key_id
    assert "cannot be written" in holdfast("receipt", "keygen", tmp_path / "no" / "key.pem", code=2).stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_key_of_openssl_is_accepted(holdfast, tmp_path):
    file = tmp_path / "openssl.pem"
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", file], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this openssl has no Ed25519")
    file.chmod(0o600)
    assert SigningKey.read(file).key_id == PublicKey.read(file).key_id
