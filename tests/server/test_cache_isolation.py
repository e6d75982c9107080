"""A tenant finds its own cached pages and those of shared prompts; no bit of an answer depends on it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.server.api.shared_prompts import read_shared_prompts
from holdfast.server.cache_isolation import CacheScope, SharedPrompts, cache_scope
from holdfast.server.prompts import Prompts
from holdfast.server.tenants.tenant import address_tenant, key_tenant
from holdfast.text.tokenizer import open_tokenizer
from support.serving import Server, serving

ALICE, BOB = "key-of-alice", "key-of-bob"
SHARED = "the quick brown fox jumps over the lazy dog, and then the dog sleeps; " * 3
SHARED_SYSTEM = {"messages": [{"role": "system", "content": "a b c 1 2 3 " * 12}]}


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("shared") / "prompts.json"
    path.write_text(json.dumps([SHARED, SHARED_SYSTEM]))
    keys = [part for key in (ALICE, BOB) for part in ("--api-key", key)]
    with serving(tiny_llama, "--served-model-name", "tiny", *keys, "--shared-prompts", str(path)) as server:
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


@pytest.mark.parametrize("kind", ["text", "system-message"])
def test_shared_prompts_are_found_by_all(server: Server, kind: str) -> None:
    def body(question: str) -> dict[str, Any]:
        if kind == "text":
            return {"prompt": SHARED + question}
        user = {"role": "user", "content": question}
        return {"messages": [*SHARED_SYSTEM["messages"], user]}

    secret = "my pin is 4711 and the dog sleeps " * 3
    ask(server, ALICE, **body(secret))
    shared, _ = ask(server, BOB, **body("who jumps over the lazy dog?"))
    assert shared > 32 and shared % 16 == 0
    assert ask(server, BOB, **body(secret))[0] == shared  # nothing of what only Alice said
    assert ask(server, ALICE, **body(secret))[0] > shared
    assert ask(server, BOB, **body(secret), cache_salt="mine")[0] == 0


def test_scope_of_a_request() -> None:
    shared = SharedPrompts([(1, 2, 3), (1, 2, 4, 5), (9,)])
    alice, bob, address = key_tenant("alice"), key_tenant("bob"), address_tenant("192.0.2.7")
    ids = (1, 2, 4, 6)
    assert cache_scope(address, None, ids, shared) == CacheScope()
    assert cache_scope(address, "s", ids, shared) == CacheScope("s")
    scopes = [
        cache_scope(tenant, salt, ids, shared) for tenant in (alice, bob) for salt in (None, "s", "key:bob")
    ]
    assert len({scope.salt for scope in scopes}) == 6 and all(scope.salt for scope in scopes)
    assert [scope.shared_len for scope in scopes] == [3, 0, 0] * 2


@pytest.mark.parametrize(
    ("ids", "length"),
    [((), 0), ((1,), 1), ((1, 2, 3, 4), 3), ((1, 2, 4, 5, 6), 4), ((1, 3), 1), ((8,), 0), ((9, 9), 1)],
    ids=str,
)
def test_length_in_common_with_shared_prompts(ids: tuple[int, ...], length: int) -> None:
    assert SharedPrompts([(1, 2, 4, 5), (9,), (1, 2, 3)]).common_len(ids) == length
    assert SharedPrompts().common_len(ids) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "JSON list"),
        ("[", "cannot be read as JSON"),
        ("[3]", "prompt 0"),
        ('["a", {"messages": [{"role": "user"}]}]', "prompt 1"),
        ('[{"messages": []}]', "prompt 0"),
        ('[{"unknown": 1}]', "prompt 0"),
    ],
    ids=["object", "no-json", "number", "no-content", "no-messages", "unknown-field"],
)
def test_bad_file_of_shared_prompts(tmp_path: Path, tiny_llama: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    prompts = Prompts(open_tokenizer(tiny_llama))
    with pytest.raises(ConfigError, match=message):
        read_shared_prompts(str(path), prompts)
    prompts.close()
