"""A server with a key signs its receipts, offers the public key, and shows the private one to no one."""

from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdfast.receipts.check import check_signature
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.signing import PublicKey, SigningKey
from support.receipts import resealed
from support.serving import Server


def test_receipts_are_signed_with_the_published_key(tiny_server: Server, receipt_key: Path) -> None:
    offered = tiny_server.get("/v1/receipt_key").json()
    public = PublicKey.parse(offered["public_key"].encode())
    assert offered["key_id"] == public.key_id == PublicKey.read(receipt_key).key_id
    body = {"prompt": "the fox", "max_tokens": 5, "deterministic": True, "return_receipt": True}
    receipt = tiny_server.post("/v1/completions", body).json()["holdfast"]["receipt"]
    assert check_signature(parse_receipt(receipt), public).signature == "valid"
    outcome = tiny_server.post("/v1/replay", {"receipt": receipt}).json()
    assert (outcome["same"], outcome["seal"], outcome["signature"]) == (True, "intact", "valid")
    forged = tiny_server.post("/v1/replay", {"receipt": resealed(receipt, counts={})})
    assert forged.status_code == 400
    assert "its signature is wrong" in forged.json()["error"]["message"]
    other = SigningKey.generate()
    foreign = resealed(receipt, signer={"algorithm": "ed25519", "key_id": other.key_id})
    foreign["signature"] = other.sign(foreign["seal"])
    assert tiny_server.post("/v1/replay", {"receipt": foreign}).json()["signature"] == "not checked"


def test_private_key_is_shown_nowhere(tiny_server: Server, receipt_key: Path) -> None:
    secret = receipt_key.read_text().splitlines()[1]
    raw = load_pem_private_key(receipt_key.read_bytes(), None).private_bytes_raw().hex()  # type: ignore[union-attr]
    shown = [
        tiny_server.get(path).text
        for path in ("/metrics", "/v1/certificate", "/v1/receipt_key", "/openapi.json")
    ]
    for text in (*shown, tiny_server.text):
        assert secret not in text and raw not in text
