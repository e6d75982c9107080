"""The table of phases, every pair of it."""

from itertools import product

import pytest

from holdfast.scheduler.request_state import LIVE, TRANSITIONS, Phase, advance

ALLOWED = {
    ("queued", "prefill"), ("queued", "aborted"), ("queued", "failed"),
    ("prefill", "decode"), ("prefill", "finished"), ("prefill", "queued"), ("prefill", "aborted"),
    ("prefill", "failed"),
    ("decode", "verify"), ("decode", "finished"), ("decode", "queued"), ("decode", "aborted"), ("decode", "failed"),
    ("verify", "decode"), ("verify", "finished"), ("verify", "queued"), ("verify", "aborted"), ("verify", "failed"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(product(Phase, Phase)))
def test_every_pair(source: Phase, target: Phase) -> None:
    if (source.value, target.value) in ALLOWED:
        assert advance(source, target) is target
    else:
        with pytest.raises(AssertionError, match=f"from {source.value} to {target.value}"):
            advance(source, target)


def test_the_dead_stay_dead() -> None:
    assert set(Phase) - LIVE == {Phase.FINISHED, Phase.ABORTED, Phase.FAILED}
    assert all(not TRANSITIONS[phase] for phase in set(Phase) - LIVE)
