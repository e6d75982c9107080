"""Receipts over HTTP: a bad one is refused, a forged one gives no wrong result, and those of a server with a key
are signed. The private key is shown to no one."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdfast.receipts.check import check_signature
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.signing import PublicKey, SigningKey
from support.bodies import checked_client
from support.receipts import prompt_of, resealed, unsigned
from support.serving import Server


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    with checked_client(tiny_server) as client:
        yield client


@pytest.fixture(scope="module")
def receipt(client: httpx.Client) -> dict[str, Any]:
    body = {"prompt": "the quick", "max_tokens": 6, "seed": 5, "deterministic": True, "return_receipt": True}
    made: dict[str, Any] = client.post("/v1/completions", json=body).json()["holdfast"]["receipt"]
    return made


def replay(client: httpx.Client, receipt: Any, **fields: Any) -> httpx.Response:
    answer = client.post("/v1/replay", json={"receipt": receipt, **fields})
    assert answer.status_code in (200, 400) and "Traceback" not in answer.text
    return answer


@pytest.mark.parametrize("value", [None, "x", [[1 << 40]]])
def test_bad_receipt_is_refused(client: httpx.Client, receipt: dict[str, Any], value: Any) -> None:
    """The table of bad receipts is in `receipts/test_receipt_reader`."""
    assert replay(client, receipt).json()["same"]
    assert replay(client, {**receipt, "choices": value}).status_code == 400
    without = {key: receipt[key] for key in receipt if key != "choices"}
    assert replay(client, without).status_code == 400


def with_prompt(receipt: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """With another prompt, and the digest of it."""
    return unsigned(receipt, prompt=prompt_of(ids))


def with_fingerprint(receipt: dict[str, Any], parts: Any) -> dict[str, Any]:
    """With another fingerprint, and the digest of it."""
    return unsigned(receipt, fingerprint={"parts": parts, "digest": Fingerprint.of(parts).digest})


def test_forged_receipt_with_right_digests_is_refused_or_compared(
    client: httpx.Client, receipt: dict[str, Any]
) -> None:
    """The digests are right, but not the values. The engine refuses what it cannot serve."""
    settings = receipt["settings"]

    def with_settings(**fields: Any) -> dict[str, Any]:
        return unsigned(receipt, settings={**settings, **fields})

    refused = (
        with_prompt(receipt, [10**6]),
        with_prompt(receipt, [5] * 100_000),
        with_prompt(receipt, []),
        with_settings(max_tokens=1 << 24),
        with_settings(structured={"regex": "("}),
        with_settings(structured={"lark": "%%%"}),
        with_settings(allowed_token_ids=[320]),
        with_settings(n=10**9),
        with_settings(n=128),
    )
    for one in refused:
        answer = replay(client, one, force=True)
        assert answer.status_code == 400, json.dumps(one)[:300]
    for parts in ({}, {"x" * 1000: "y" * 100_000}, {str(one): one for one in range(5000)}, nested(40)):
        answer = replay(client, with_fingerprint(receipt, parts))
        assert answer.status_code == 200 and not answer.json()["compared"] and len(answer.content) < 2_000_000
        assert replay(client, with_fingerprint(receipt, parts), force=True).json()["same"]
    other = deepcopy(receipt)
    other["prompt"]["token_ids"] = None
    assert replay(client, other, prompt_token_ids=[5] * 400_000).status_code == 400
    assert replay(client, other, prompt_token_ids=[5]).status_code == 400


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


def test_receipt_of_another_grammar_library_is_not_run(client: httpx.Client) -> None:
    pytest.importorskip("llguidance")
    body = {"prompt": "the quick", "max_tokens": 6, "seed": 5, "deterministic": True, "return_receipt": True}
    answer = client.post("/v1/completions", json={**body, "guided_regex": "[a-z]{40}"})
    assert answer.status_code == 200, answer.text
    made = answer.json()["holdfast"]["receipt"]
    assert replay(client, made).json()["same"]
    other = unsigned(made, grammar={**made["grammar"], "masks": "a" * 64})
    outcome = replay(client, other).json()
    assert not outcome["compared"] and not outcome["same"]
    (line,) = outcome["fingerprint_differences"]
    assert line.startswith("grammar.masks: ") and line.endswith("aaaaaaaaaaaa... in the receipt")
    assert replay(client, other, force=True).json()["same"]
    refused = client.post("/v1/continue", json={"receipt": other, "max_tokens": 12})
    assert refused.status_code == 409 and "grammar.masks" in refused.text
    assert client.post("/v1/continue", json={"receipt": made, "max_tokens": 12}).status_code == 200


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
