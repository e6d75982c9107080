"""What an attack costs an honest client of another tenant.

Its p50 is at most 3 times the quiet value and one step against one hostile tenant, k + 1 times
against k, and none of its requests is refused.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from abuse.attacker import Attacker
from abuse.attacks import attack_names
from abuse.honest import Honest
from abuse.measure import HEADER, LONG, SHORT, Form, measure
from abuse.setup import MAX_MODEL_LEN, attacked_model, with_proxy
from abuse.wire import Target
from support.serving import Server, serving

# Seconds. The machine of the gate may be busy, so that it has three attempts as well; without the
# defences each costs seconds.
SLACK = 0.4
NOISE = 0.1  # seconds, of a long run
PATIENCE = 20.0


def attack(
    name: str,
    honest: Honest,
    hostile: list[Target],
    attacker: Attacker,
    form: Form,
    slack: float,
    attempts: int = 1,
) -> None:
    """Fails if the honest client is refused, or waits too long in every attempt."""
    for _ in range(attempts):
        outcome = measure(name, honest, hostile, attacker, form)
        print(f"\n{HEADER}\n{outcome.row()}")
        assert outcome.num_refused == 0, outcome.row()
        if max(outcome.attacked, outcome.after) <= outcome.limit + slack:
            return
    pytest.fail(outcome.row())


@pytest.fixture(autouse=True)
def sound(attacked: Server) -> Iterator[None]:
    """The engine was not restarted, and nothing failed inside."""
    yield
    assert attacked.process.poll() is None and "Traceback" not in attacked.text
    assert attacked.text.count("Ready after") == 1


@pytest.mark.parametrize("name", attack_names(in_gate=True))
def test_honest_client_keeps_its_share(
    name: str, request: pytest.FixtureRequest, honest: Honest, hostile: list[Target], attacker: Attacker
) -> None:
    honest, hostile = with_proxy(name, request, honest, hostile)
    attack(name, honest, hostile[:1], attacker, SHORT, SLACK, attempts=3)


@pytest.mark.long
@pytest.mark.parametrize("num_hostile", [1, 2])
@pytest.mark.parametrize("name", attack_names())
def test_honest_client_keeps_its_share_for_longer(
    name: str,
    num_hostile: int,
    request: pytest.FixtureRequest,
    honest: Honest,
    hostile: list[Target],
    attacker: Attacker,
) -> None:
    honest, hostile = with_proxy(name, request, honest, hostile)
    attack(name, honest, hostile[:num_hostile], attacker, LONG, NOISE)


@pytest.mark.long
@pytest.mark.parametrize("name", ["many_choices", "slow_grammars", "tokenize_flood"])
def test_without_keys_an_address_is_a_tenant(name: str, tmp_path: Path, attacker: Attacker) -> None:
    with serving(attacked_model(tmp_path), "--max-num-seqs", "16", "--kv-memory", "64MiB") as server:
        honest = Honest(Target(server.url), PATIENCE)
        hostile = Target(server.url, max_model_len=MAX_MODEL_LEN, source="127.0.0.2")
        attack(name, honest, [hostile], attacker, LONG, NOISE)
