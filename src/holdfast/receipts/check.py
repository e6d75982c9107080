"""What can be said of a receipt without running its model: whether its seal is intact, and whether
a public key's owner signed it.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.errors import InvalidRequest
from holdfast.receipts.reader import parse_receipt, require_format
from holdfast.receipts.receipt import FORMAT, Receipt, seal_of
from holdfast.receipts.signing import PublicKey

SealState = Literal["intact", "broken"]
SignatureState = Literal["valid", "invalid", "other key", "not checked", "absent"]

_NOT_VALID: dict[SignatureState, str] = {
    "absent": "it is not signed",
    "invalid": "its signature is wrong: the key's owner did not sign this seal",
    "other key": "it is signed with another key",
}


@dataclass(frozen=True)
class ReceiptCheck:
    """The states of a receipt's seal and signature. problem: the first thing that is wrong."""

    format: str
    seal: SealState
    signature: SignatureState
    key_id: str | None
    problem: str | None = None

    def describe(self) -> str:
        """In a few words: "seal intact, signature valid"."""
        signature = {"absent": "not signed", "other key": "signed with another key"}
        return f"seal {self.seal}, {signature.get(self.signature, f'signature {self.signature}')}"


def check_signature(receipt: Receipt, key: PublicKey | None) -> ReceiptCheck:
    """Return the states of a receipt that was read, so its seal is intact. With a key, refuses one that its
    owner did not sign."""
    key_id = None if receipt.signer is None else receipt.signer.key_id
    state = _signature_state(key_id, receipt.seal, receipt.signature, key)
    if key is not None and state in _NOT_VALID:
        raise InvalidRequest(f"the receipt cannot be used: {_NOT_VALID[state]}")
    return ReceiptCheck(FORMAT, "intact", state, key_id)


def check_content(content: object, key: PublicKey | None) -> ReceiptCheck:
    """Return the same of parsed JSON, and what is wrong with it. Refuses only another format."""
    require_format(content)
    assert isinstance(content, dict)
    actual, key_id = _actual_seal(content), _key_id(content)
    seal: SealState = "intact" if actual and content.get("seal") == actual else "broken"
    state = _signature_state(key_id, actual, content.get("signature"), key)
    problem = None if key is None else _NOT_VALID.get(state)
    try:
        parse_receipt(content)
    except InvalidRequest as error:
        problem = str(error)
    return ReceiptCheck(FORMAT, seal, state, key_id, problem)


def _actual_seal(content: dict[str, Any]) -> str:
    """Return the seal that this content would have; an empty text where it can have none."""
    try:
        return seal_of(content)
    except (KeyError, TypeError, ValueError):  # no digest of a prompt, or a number that is no double
        return ""


def _key_id(content: dict[str, Any]) -> str | None:
    signer = content.get("signer")
    key_id = signer.get("key_id") if isinstance(signer, dict) else None
    return key_id if isinstance(key_id, str) and re.fullmatch("[0-9a-f]{64}", key_id) else None


def _signature_state(
    key_id: str | None, seal: object, signature: object, key: PublicKey | None
) -> SignatureState:
    if not isinstance(seal, str) or not isinstance(signature, str):
        return "absent"
    if key is None:
        return "not checked"
    if key_id != key.key_id:
        return "other key"
    return "valid" if key.verifies(seal, signature) else "invalid"
