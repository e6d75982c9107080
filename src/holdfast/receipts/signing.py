"""Signs a receipt's seal with Ed25519, and checks such a signature.

The message that is signed is the bytes `holdfast-receipt/2`, a zero byte and the seal's 64
hexadecimal digits, so that a signature of a receipt is a signature of nothing else. A key is named
by its id, the SHA-256 of the 32 bytes of the public key.

The package cryptography is imported only where a key is used.
"""

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_DOMAIN = b"holdfast-receipt/2\0"
_MAX_KEY_BYTES = 1 << 16


class PublicKey:
    """Checks signatures."""

    def __init__(self, key: "Ed25519PublicKey") -> None:
        self._key = key
        self.key_id = hashlib.sha256(key.public_bytes_raw()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "PublicKey":
        """Return the public key in a PEM file; of a private key's file, its public half."""
        raw = _read(path, "public key")
        if b"PRIVATE KEY-----" in raw:
            return SigningKey.parse(raw, str(path)).public_key
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, pem: bytes, name: str = "the given text") -> "PublicKey":
        exceptions, ed25519, serialization = _cryptography()
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, TypeError, exceptions.UnsupportedAlgorithm):
            raise InvalidRequest(
                f"{name} is no public key; expected PEM text that begins with -----BEGIN PUBLIC KEY-----"
            ) from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidRequest(f"{name} is a public key of another kind; receipts are signed with Ed25519")
        return cls(key)

    @property
    def pem(self) -> str:
        _, _, forms = _cryptography()
        pem = self._key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
        return pem.decode()

    def verifies(self, seal: str, signature: str) -> bool:
        """Return whether this is the key's signature of a seal."""
        exceptions, _, _ = _cryptography()
        try:
            self._key.verify(base64.b64decode(signature, validate=True), _message(seal))
        except (exceptions.InvalidSignature, binascii.Error, ValueError):
            return False
        return True


class SigningKey:
    """Signs seals. The private key never leaves this object: not in its text, not in a message."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public_key = PublicKey(key.public_key())

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id})"

    @property
    def key_id(self) -> str:
        return self.public_key.key_id

    @classmethod
    def read(cls, path: Path) -> "SigningKey":
        """Return the key in a PEM file, as `openssl genpkey -algorithm ed25519` writes it. Raises
        `ConfigError` for any other, and for a file that other users can read."""
        return cls.parse(_read(path, "receipt key", private=True), str(path))

    @classmethod
    def parse(cls, pem: bytes, name: str) -> "SigningKey":
        exceptions, ed25519, serialization = _cryptography()
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except TypeError:
            raise ConfigError(
                f"the receipt key {name} is encrypted; the server cannot ask for a password. Decrypt it with: "
                f"openssl pkey -in {name} -out FILE"
            ) from None
        except (ValueError, exceptions.UnsupportedAlgorithm):
            raise ConfigError(
                f"the receipt key {name} is no private key in PEM; make one with: holdfast receipt keygen FILE"
            ) from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(
                f"the receipt key {name} is of another kind; expected Ed25519: holdfast receipt keygen FILE"
            )
        return cls(key)

    @classmethod
    def generate(cls) -> "SigningKey":
        _, ed25519, _ = _cryptography()
        return cls(ed25519.Ed25519PrivateKey.generate())

    def write(self, path: Path) -> None:
        """Write the private key to a new file that only its owner can read."""
        _, _, forms = _cryptography()
        pem = self._key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem)
        except FileExistsError:
            raise InvalidRequest(f"{path} exists already; a key is never overwritten") from None
        except OSError as error:
            raise InvalidRequest(f"the key {path} cannot be written: {error.strerror}") from error

    def sign(self, seal: str) -> str:
        """Return the signature of a seal, in base64. The same seal always has the same signature."""
        return base64.b64encode(self._key.sign(_message(seal))).decode()


def _message(seal: str) -> bytes:
    return SIGNATURE_DOMAIN + seal.encode()


def _read(path: Path, what: str, *, private: bool = False) -> bytes:
    try:
        if not path.is_file():
            raise ConfigError(f"there is no {what} {path}")
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"the {what} {path} cannot be read: {why}") from error
    if private and os.name == "posix" and mode & stat.S_IRWXO:
        raise ConfigError(
            f"the {what} {path} is open to other users of this machine; close it with: chmod 600 {path}"
        )
    if len(raw) > _MAX_KEY_BYTES:
        raise ConfigError(f"the {what} {path} is larger than {_MAX_KEY_BYTES} bytes")
    return raw


def _cryptography() -> tuple[Any, Any, Any]:
    """Return its modules for exceptions, for Ed25519 keys and for their forms in files."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(
            "signed receipts need the package cryptography; install it with: pip install 'holdfast[signed]'"
        ) from error
    return exceptions, ed25519, serialization
