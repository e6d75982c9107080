"""A deterministic answer has the same bits whoever asks: any tenant, any salt, with and without keys
and limits, under every attack."""

from pathlib import Path
from typing import Any

import pytest

from abuse.attacker import Attacker
from abuse.attacks import ATTACKS, attack_names
from abuse.honest import Honest
from abuse.setup import attacked_model, with_proxy
from abuse.soak import CANARY, digest
from abuse.wire import Target
from support.serving import serving

SALTS = (None, "salt", "other salt")
KEY_FILE = """
[default]
max_waiting = 8

[[tenant]]
name = "limited"
key = "limited"
max_running = 1
tokens_per_minute = 100000
requests_per_minute = 1000
"""


def ask(client: Honest, **fields: Any) -> str:
    status, answer = client.send("/v1/completions", {**CANARY, **fields})
    assert status == 200, answer
    return digest(answer)


@pytest.fixture(scope="module")
def song(honest: Honest) -> str:
    return ask(honest)


def test_tenant_and_salt_change_no_bit(song: str, honest: Honest, hostile: list[Target]) -> None:
    clients = [honest, *(Honest(target, honest.patience) for target in hostile)]
    assert {ask(client, cache_salt=salt) for client in clients for salt in SALTS} == {song}


def test_attack_changes_no_bit(song: str, honest: Honest, hostile: list[Target], attacker: Attacker) -> None:
    attacker.begin("logit_biases", hostile, 4, honest.patience)
    try:
        assert {ask(honest) for _ in range(3)} == {song}
    finally:
        attacker.end()


@pytest.mark.long
@pytest.mark.parametrize("name", attack_names())
def test_no_attack_changes_a_bit(
    name: str,
    request: pytest.FixtureRequest,
    song: str,
    honest: Honest,
    hostile: list[Target],
    attacker: Attacker,
) -> None:
    honest, hostile = with_proxy(name, request, honest, hostile)
    attacker.begin(name, hostile, ATTACKS[name].num_clients[0], honest.patience)
    try:
        assert {ask(honest) for _ in range(10)} == {song}
    finally:
        attacker.end()


@pytest.mark.long
@pytest.mark.parametrize("limits", [None, KEY_FILE], ids=["without keys", "with limits"])
def test_keys_and_limits_change_no_bit(song: str, tmp_path: Path, limits: str | None) -> None:
    options: tuple[str, ...] = ("--max-num-seqs", "16", "--kv-memory", "64MiB")
    if limits is not None:
        path = tmp_path / "keys.toml"
        path.write_text(limits)
        path.chmod(0o600)
        options += ("--key-file", str(path))
    with serving(attacked_model(tmp_path), *options) as server:
        client = Honest(Target(server.url, None if limits is None else "limited"), patience=60.0)
        assert {ask(client, cache_salt=salt) for salt in SALTS} == {song}
