"""Replays of forged receipts: four tokens in the receipt, as many as the context holds to compute."""

import asyncio
import json
from typing import Any

from abuse.attack import Attack
from abuse.wire import LOST, Target, encode, request
from holdfast.receipts.receipt import seal_of

_receipts: dict[tuple[str, str | None, int], Any] = {}
_lock = asyncio.Lock()


async def once(target: Target, number: int) -> int:
    receipt = await make_receipt(target, 4)
    if receipt is None:
        return LOST
    forged = forge(receipt, forged_settings(target, number))
    return await request(target, "/v1/replay", {"receipt": forged, "force": True})


def forge(receipt: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The receipt with other settings, sealed anew as a forger without the server's key can."""
    settings = {**receipt["settings"], **changes}
    forged = {**receipt, "settings": settings, "signer": None, "signature": None}
    return {**forged, "seal": seal_of(forged)}


def forged_settings(target: Target, number: int) -> dict[str, Any]:
    if number % 2:
        return {"stop": [f"never{at}" for at in range(40)]}
    return {"max_tokens": target.max_model_len - 64, "ignore_eos": True, "stop": []}


async def make_receipt(target: Target, max_tokens: int) -> Any:
    """A true receipt of this server, made once; None if the server refuses."""
    key = target.url, target.key, max_tokens
    async with _lock:
        if key not in _receipts:
            body = {"prompt": "the", "max_tokens": max_tokens, "seed": 7, "deterministic": True}
            answer = await _send(target, {**body, "ignore_eos": True, "return_receipt": True})
            _receipts[key] = answer.get("holdfast", {}).get("receipt")
    return _receipts[key]


async def _send(target: Target, body: Any) -> Any:
    content = encode(body)
    reader, writer = await target.connect()
    try:
        writer.write(target.head("POST", "/v1/completions", len(content)) + content)
        head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
        return json.loads(answer) if b" 200 " in head else {}
    finally:
        writer.close()


ATTACK = Attack(__doc__, once, num_clients=(8, 16), in_gate=True)
