"""Key files that cannot be used are refused when the engine starts, with the reason."""

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from holdfast import LLM, SamplingParams
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.receipts.check import check_signature
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.signing import PublicKey, SigningKey


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def pem(key: ed25519.Ed25519PrivateKey | x25519.X25519PrivateKey, password: bytes = b"") -> bytes:
    cipher = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher)


@pytest.fixture
def private() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def test_wrong_key_files_are_refused(tmp_path: Path, private: ed25519.Ed25519PrivateKey) -> None:
    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    for content, mode, said in (
        (b"", 0o600, "is no private key in PEM"),
        (b"hello", 0o600, "is no private key in PEM"),
        (pem(private)[:60], 0o600, "is no private key in PEM"),
        (SigningKey.generate().public_key.pem.encode(), 0o600, "is no private key in PEM"),
        (pem(private, b"secret"), 0o600, "is encrypted"),
        (pem(x25519.X25519PrivateKey.generate()), 0o600, "is of another kind; expected Ed25519"),
        (b"-" * (1 << 17), 0o600, "is larger than"),
        (pem(private), 0o644, "is open to other users of this machine"),
    ):
        with pytest.raises(ConfigError, match=said):
            SigningKey.read(write(key, content, mode))
    for path in (tmp_path, tmp_path / "nowhere", Path("a\0b")):
        with pytest.raises(ConfigError, match="receipt key"):
            SigningKey.read(path)
    assert SigningKey.read(write(other, pem(private), 0o640)).key_id  # a group may read it


def test_wrong_public_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "public.pem"
    for content in (b"", b"hello", b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(InvalidRequest, match="is no public key"):
            PublicKey.read(write(file, content))
    with pytest.raises(ConfigError, match="there is no public key"):
        PublicKey.read(tmp_path / "nowhere")


def test_engine_signs_with_its_key(
    tiny_llama: Path, tmp_path: Path, private: ed25519.Ed25519PrivateKey
) -> None:
    key = write(tmp_path / "key.pem", pem(private))
    llm = LLM(str(tiny_llama), dtype="fp32", max_pass_tokens=64, receipt_key=str(key), determinism="off")
    made = llm.generate(["the fox"], SamplingParams(max_tokens=4))[0].receipt
    assert made is not None
    receipt = parse_receipt(made)
    assert check_signature(receipt, PublicKey.read(key)).signature == "valid"
    secret = private.private_bytes_raw()
    assert secret.hex() not in repr(vars(llm.engine.receipts)) + repr(llm.config)
    assert "receipt_key" not in str(llm.engine.fingerprint.parts)


def test_engine_with_a_wrong_key_does_not_start(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no receipt key"):
        LLM(str(tiny_llama), receipt_key=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="receipt_key must be the path of a file"):
        LLM("/no/such/model", receipt_key=7)  # type: ignore[arg-type]


def test_missing_package_is_named_and_checking_needs_no_torch() -> None:
    program = """
import sys
sys.modules["cryptography"] = None
from pathlib import Path
from holdfast.errors import ConfigError
from holdfast.receipts.check import check_content
from holdfast.receipts.signing import SigningKey
import holdfast.cli.main
try:
    SigningKey.generate()
except ConfigError as error:
    print(error)
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    said, torch = done.stdout.splitlines()
    assert said.endswith("install it with: pip install 'holdfast[signed]'")
    assert torch == "False"
