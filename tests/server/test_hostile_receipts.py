"""Receipts that lie: to a server, every receipt is a stranger's. None of them harms anybody, and none is believed."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest

from holdfast.receipts.fingerprint import Fingerprint, digest_of
from support.serving import Server


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    engine, num_lines = tiny_server.engine_pid, len(tiny_server.lines)
    with httpx.Client(base_url=tiny_server.url, timeout=30) as client:
        yield client
    tiny_server.wait_idle()
    assert tiny_server.engine_pid == engine
    assert "Traceback" not in "\n".join(tiny_server.lines[num_lines:])


@pytest.fixture(scope="module")
def receipt(client: httpx.Client) -> dict[str, Any]:
    body = {"prompt": "the quick", "max_tokens": 6, "seed": 5, "deterministic": True, "return_receipt": True}
    made: dict[str, Any] = client.post("/v1/completions", json=body).json()["holdfast"]["receipt"]
    return made


def replay(client: httpx.Client, receipt: Any, **fields: Any) -> httpx.Response:
    answer = client.post("/v1/replay", json={"receipt": receipt, **fields})
    assert answer.status_code in (200, 400) and "Traceback" not in answer.text
    return answer


def test_a_receipt_is_refused_with_any_of_its_parts_wrong(
    client: httpx.Client, receipt: dict[str, Any]
) -> None:
    """Nothing of a receipt is believed: without a field, or with another's value in it, it is refused or differs."""
    assert replay(client, receipt).json()["same"]
    wrong = (None, -1, 1 << 70, 0.5, "x", [], {}, [[1 << 40]], {"a": {"b": []}}, True)
    for name in receipt:
        without = {key: value for key, value in receipt.items() if key != name}
        assert replay(client, without).status_code == 400
        for value in (one for one in wrong if one != receipt[name]):
            answer = replay(client, {**receipt, name: value})
            assert answer.status_code == 400 or (
                name in ("certificate", "counts") and answer.json()["same"]
            ), name


def prompted(receipt: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """With another prompt, and a digest that says so."""
    return {**receipt, "prompt": {"token_ids": ids, "digest": digest_of([*ids])}}


def printed(receipt: dict[str, Any], parts: Any) -> dict[str, Any]:
    """With another fingerprint, and a digest that says so."""
    return {**receipt, "fingerprint": {"parts": parts, "digest": Fingerprint(parts).digest}}


def test_a_receipt_that_lies_well_harms_nobody(client: httpx.Client, receipt: dict[str, Any]) -> None:
    """The digests are right; what they are digests of is not."""
    settings = receipt["settings"]

    def asking(**fields: Any) -> dict[str, Any]:
        return {**receipt, "settings": {**settings, **fields}}

    refused = (
        prompted(receipt, [10**6]),
        prompted(receipt, [5] * 100_000),
        prompted(receipt, []),
        asking(n=10**9),
        asking(n=128),
        asking(max_tokens=1 << 24),
        asking(structured={"regex": "("}),
        asking(structured={"lark": "%%%"}),
        asking(stop=["a" * 1_000_000]),
        asking(bad_words=["a" * 4096] * 1024),
        asking(allowed_token_ids=[320]),
        asking(logit_bias=[[5, "x"]]),
        asking(__class__="x"),
    )
    for one in refused:
        answer = replay(client, one, force=True)
        assert answer.status_code == 400, json.dumps(one)[:300]
    for parts in ({}, {"x" * 1000: "y" * 100_000}, {str(one): one for one in range(5000)}, nested(40)):
        answer = replay(client, printed(receipt, parts))
        assert answer.status_code == 200 and not answer.json()["compared"] and len(answer.content) < 2_000_000
        assert replay(client, printed(receipt, parts), force=True).json()["same"]
    other = deepcopy(receipt)
    other["prompt"]["token_ids"] = None
    assert replay(client, other, prompt_token_ids=[5] * 400_000).status_code == 400
    assert replay(client, other, prompt_token_ids=[5]).status_code == 400


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}
