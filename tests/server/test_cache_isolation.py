"""A tenant finds its own cached pages; no bit of an answer depends on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.tenants.tenant import address_tenant, key_tenant
from support.serving import Server, serving

ALICE, BOB = "key-of-alice", "key-of-bob"


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    keys = [part for key in (ALICE, BOB) for part in ("--api-key", key)]
    with serving(tiny_llama, "--served-model-name", "tiny", *keys) as server:
        yield server


def ask(server: Server, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """cached_tokens and the choice."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    settings = {"max_tokens": 6, "seed": 3, "deterministic": True, "model": "tiny"}
    answer = server.post(path, {**settings, **body}, headers={"Authorization": f"Bearer {key}"}).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]


def test_tenants_find_their_own_pages_and_get_the_same_bits(server: Server, tiny_server: Server) -> None:
    body = {"prompt": [*range(100, 180)], "logprobs": 2}
    asked = [
        ask(server, key, **body, **salt)
        for salt in ({}, {"cache_salt": "x"}, {"cache_salt": '["key:api-key-1", ""]'})
        for key in (ALICE, BOB, ALICE)
    ]
    cached = [number for number, _ in asked]
    assert cached == [0, 0, 64] * 3
    without_keys = ask(tiny_server, "none", **body)[1]
    assert all(choice == without_keys for _, choice in asked)


def test_salt_of_a_request() -> None:
    alice, bob, address = key_tenant("alice"), key_tenant("bob"), address_tenant("192.0.2.7")
    assert address.salt(None) == "" and address.salt("s") == "s"
    salts = [tenant.salt(salt) for tenant in (alice, bob) for salt in (None, "s", "key:bob")]
    assert len(set(salts)) == 6 and all(salts)
