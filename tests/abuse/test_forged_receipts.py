"""A forged receipt makes the server compute no more than an honest one."""

from typing import Any

import pytest

from abuse.attacks import forge
from abuse.honest import Honest
from abuse.setup import HOSTILE_KEYS, MAX_MODEL_LEN
from abuse.wire import Target
from support.serving import Server

NUM_TOKENS = 4


@pytest.fixture(scope="module")
def receipt(honest: Honest) -> dict[str, Any]:
    """A true receipt of an answer of four tokens."""
    body = {"prompt": "the", "max_tokens": NUM_TOKENS, "seed": 7, "deterministic": True, "ignore_eos": True}
    status, answer = honest.send("/v1/completions", {**body, "return_receipt": True})
    assert status == 200
    made: dict[str, Any] = answer["holdfast"]["receipt"]
    return made


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        pytest.param({}, (200,), id="true"),
        pytest.param({"stop": [f"never{at}" for at in range(40)]}, (400,), id="40 stop strings"),
        pytest.param({"max_tokens": MAX_MODEL_LEN - 64}, (200, 400), id="many tokens"),
        pytest.param({"n": 1000}, (400,), id="many choices"),
        pytest.param({"bad_words": [f"b{at}" for at in range(5000)]}, (400,), id="bad words"),
    ],
)
def test_replay_computes_no_more_than_the_receipt_has(
    attacked: Server,
    honest: Honest,
    receipt: dict[str, Any],
    changes: dict[str, Any],
    statuses: tuple[int, ...],
) -> None:
    mallory = Honest(Target(attacked.url, HOSTILE_KEYS[0]), honest.patience)
    before = generated(honest)
    status, answer = mallory.send("/v1/replay", {"receipt": forge(receipt, changes), "force": True})
    assert status in statuses, answer
    assert generated(honest) - before <= 2 * NUM_TOKENS
    if not changes:
        assert answer["same"]


def generated(honest: Honest) -> float:
    """The tokens that the server has generated so far."""
    lines = honest.text("/metrics").splitlines()
    name = "holdfast_generation_tokens_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
